"""The routes of jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, ConfigDict, Field

from gridhand.api.callers import acts_as, owner_of
from gridhand.api.following import Follower, Following
from gridhand.api.planning import planned
from gridhand.api.schemas import OpId, op_id_of
from gridhand.api.strict import StrictRoute
from gridhand.api.submissions import Submission, check_environment
from gridhand.api.views import job_json
from gridhand.controller.controller import Controller
from gridhand.controller.job_commands import ADMIN
from gridhand.controller.looking import Seen, Wanted
from gridhand.controller.orders import log_path
from gridhand.core.calls import Call
from gridhand.core.errors import GridError, InvalidInput, NotYours, UnknownJob
from gridhand.core.explanation import Explanation
from gridhand.core.jobs import JobState, Phase

MOST_LISTED = 10_000
MOST_TOLD = 1000  # of the tasks of an array that was submitted
_LOG_CHUNK = 4 << 20
_OPEN = (JobState.QUEUED, JobState.RUNNING)
_LAST = frozenset({"@", "last"})

Offset = Annotated[int, Query(ge=0, le=2**62)]


class SignalBody(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid")

    signal: int = Field(ge=1, le=64)


def job_routes(controller: Controller) -> APIRouter:
    """Each route translates, makes one call, and translates back."""
    router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=StrictRoute)

    def shown(seen: Seen, gpus: list[str] | None = None) -> dict[str, Any]:
        usage = controller.usage_of(seen.job)
        return job_json(seen, controller.home, usage=usage, gpus=gpus)

    async def named(id: str, request: Request) -> str:
        if id not in _LAST:
            controller.home.job(id)  # refuses what is not an id
            return id
        newest = await controller.jobs(Wanted(owner=owner_of(request), limit=1))
        if not newest:
            raise UnknownJob(id)
        return newest[0].job.id

    async def any_of(id: str, request: Request) -> Seen:
        return await controller.job(await named(id, request))

    async def own(id: str, request: Request) -> Seen:
        """The job, if what it wrote, and its end, are the caller's."""
        seen = await any_of(id, request)
        who = acts_as(request)
        if who not in (seen.job.work.owner, ADMIN):
            raise NotYours(seen.job.id, who, "job")
        return seen

    @router.post("", status_code=201)
    async def submit(body: Submission, request: Request, op_id: OpId = None) -> dict[str, Any]:
        # All that can be wrong with it is found before its environment is kept.
        check_environment(body.environment)
        work, op_id = body.work(owner_of(request), ""), op_id_of(op_id)
        (indices, _), after = body.indices(), body.followed()
        work = replace(work, environment=await controller.keep(body.environment))
        ids = await controller.submit(op_id, work, indices=indices, after=after)
        found = await controller.find_surely(ids[:MOST_TOLD])
        return {"jobs": [shown(one) for one in found], "count": len(ids)}

    @router.get("")
    async def list_jobs(
        state: Annotated[list[str] | None, Query(max_length=20)] = None,
        owner: Annotated[str | None, Query(max_length=200)] = None,
        array: Annotated[str | None, Query(max_length=40)] = None,
        before: Annotated[str | None, Query(max_length=40)] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
    ) -> dict[str, list[dict[str, Any]]]:
        number = None
        if before is not None:
            controller.home.job(before)  # refuses what is not an id
            number = (await controller.job(before)).job.number
        wanted = Wanted(_states(state or []), owner, array, number, limit)
        return {"jobs": [shown(one) for one in await controller.jobs(wanted)]}

    @router.get("/{id}")
    async def job(id: str, request: Request) -> dict[str, Any]:
        seen = await any_of(id, request)
        return shown(seen, await controller.devices(seen.job))

    @router.post("/{id}/cancel")
    async def cancel(id: str, request: Request) -> dict[str, list[dict[str, Any]]]:
        ids = await controller.cancel(acts_as(request), [await named(id, request)])
        return {"jobs": [shown(one) for one in await controller.find_surely(ids)]}

    @router.post("/{id}/signal")
    async def signal(id: str, body: SignalBody, request: Request) -> dict[str, bool]:
        id = await named(id, request)
        return {"sent": await controller.signal(acts_as(request), id, body.signal)}

    @router.get("/{id}/why")
    async def why(id: str, request: Request) -> dict[str, Any]:
        seen = await any_of(id, request)
        explained: str | None = None
        holders: list[dict[str, Any]] = []
        if seen.phase is Phase.QUEUED and seen.held is None:  # it waits for nothing but room
            owner, asked = seen.job.work.owner, seen.job.request
            call: Call[Explanation] = controller.calls.explain(owner, asked, ())
            try:
                found = await controller.ask(call)
                explained = None if found.fits else str(found)
                holders = [one.to_dict() for one in found.holders]
            except GridError as error:  # what it is to be near to is not there now
                explained = f"{error}. {error.hint}"
        return {**shown(seen), "explanation": explained, "holders": holders}

    @router.post("/plan")
    async def plan(body: Submission, request: Request) -> dict[str, Any]:
        """What would become of it, if it were submitted now; nothing is."""
        work, _, after = body.work(owner_of(request), ""), body.indices(), body.followed()
        return await planned(controller, work, after)

    @router.get("/{id}/logs")
    async def logs(
        id: str,
        request: Request,
        stream: str = "stdout",
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=_LOG_CHUNK)] = _LOG_CHUNK,
        tail: Annotated[int | None, Query(ge=0, le=_LOG_CHUNK)] = None,
    ) -> Response:
        if stream not in ("stdout", "stderr"):
            raise InvalidInput("stream", stream, "stdout or stderr")
        seen = await own(id, request)
        path = log_path(seen.job, controller.home.job(seen.job.id), stream)
        size = await controller.runner.log_size(path)
        if tail is not None:
            offset = max(0, size - tail)
        text, end = joined(await controller.runner.read_log(path, offset, limit), offset)
        facts = {"Size": size, "Offset": offset, "End": end}
        headers = {f"X-Gridhand-{name}": str(value) for name, value in facts.items()}
        return Response(text, media_type="application/octet-stream", headers=headers)

    @router.get("/{id}/follow")
    async def follow(
        id: str,
        request: Request,
        attach: bool = False,
        output: bool = True,
        stdout: Offset = 0,
        stderr: Offset = 0,
    ) -> StreamingResponse:
        seen = await (own if attach or output else any_of)(id, request)
        wanted = Following(seen.job.id, attach, output, stdout, stderr)
        frames = Follower(controller, wanted, seen).frames()
        return StreamingResponse(frames, media_type="application/x-gridhand-frames")

    return router


def joined(pieces: list[tuple[int, bytes | int]], offset: int) -> tuple[bytes, int]:
    """The text of a log, saying where some was cut out, and the offset behind it."""
    text = bytearray()
    for at, piece in pieces:
        if isinstance(piece, int):
            text += b"\n[%d bytes were cut out here]\n" % piece
            offset = at + piece
        else:
            text += piece
            offset = at + len(piece)
    return bytes(text), offset


def _states(words: list[str]) -> tuple[JobState, ...]:
    found: list[JobState] = []
    for word in words:
        if word == "open":
            found += _OPEN
        elif word in list(JobState):
            found.append(JobState(word))
        else:
            raise InvalidInput("state", word, f"open, or one of {', '.join(JobState)}")
    return tuple(dict.fromkeys(found))
