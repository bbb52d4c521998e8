"""The route of predictions: what the next run of a kind of task will need."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path, Request

from gridhand.api.auth import owner_of
from gridhand.api.http import api_router
from gridhand.controller.controller import Controller
from gridhand.controller.jobs.task_predictions import predict_task
from gridhand.core.prediction.task_model import TaskPrediction


def prediction_routes(controller: Controller) -> APIRouter:
    router = api_router("", "jobs")

    @router.get("/predict/{task_type}")
    async def predict(
        request: Request, task_type: Annotated[str, Path(min_length=1, max_length=200)]
    ) -> dict[str, Any]:
        """Predict what the next run of a kind of task will need, from the caller's own jobs.

        The kind is the `task_type` of a job, else the name of its program or script. `memory` and
        `durations` are empty until there were three runs.
        """
        predicted = await predict_task(controller, task_type, owner_of(request))
        return {"task_type": task_type, **prediction_json(predicted)}

    return router


def prediction_json(predicted: TaskPrediction) -> dict[str, Any]:
    memory = predicted.memory
    return {
        "runs": predicted.runs,
        "memory": None
        if memory is None
        else {
            "bytes": memory.bytes,
            "runs": memory.runs,
            "confidence": round(memory.confidence, 4),
            "within": round(memory.within, 4),
            "largest_bytes": memory.largest,
            "median_bytes": memory.median,
        },
        "durations": [
            {
                "quantile": one.quantile,
                "seconds": one.ms / 1000,
                "held": None if one.held is None else round(one.held, 4),
            }
            for one in predicted.durations
        ],
    }
