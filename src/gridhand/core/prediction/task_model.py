"""TaskModel: what is known of one kind of task, and what its next run will need."""

from __future__ import annotations

from typing import NamedTuple

from gridhand.core.jobs.attempt import Reason
from gridhand.core.jobs.job import Job
from gridhand.core.prediction.duration_model import QUANTILES, DurationModel
from gridhand.core.prediction.peak_model import PeakModel

_TELLING = frozenset({Reason.EXIT, Reason.SIGNAL, Reason.OOM})
_STEP_BYTES = 10**6  # of suggestions: nobody wants to ask for 5839104112 bytes


class MemoryPrediction(NamedTuple):
    """How much memory to ask for, from so many runs."""

    bytes: int
    runs: int
    confidence: float  # the probability that the next run needs no more
    within: float  # the part of these runs that needed no more
    largest: int
    median: int


class DurationPrediction(NamedTuple):
    """A time in ms within which a part of the runs ends, and how often that has held."""

    quantile: float
    ms: int
    held: float | None


class TaskPrediction(NamedTuple):
    """The needs of the next run; None and empty where there were too few runs to say."""

    runs: int
    memory: MemoryPrediction | None
    durations: tuple[DurationPrediction, ...]


class TaskModel:
    """Learns from the runs of one kind of task, in the order of their ends."""

    def __init__(self) -> None:
        self._peaks = PeakModel()
        self._durations = DurationModel()
        self._runs = 0

    def learn(self, job: Job) -> None:
        """Learn from the attempts of a job that has ended.

        The memory of a failed run says as much as that of another one; only successful runs tell
        how long the work takes.
        """
        for attempt in job.attempts:
            if attempt.reason not in _TELLING:
                continue
            self._runs += 1
            if attempt.peak_bytes is not None:
                self._peaks.add(attempt.peak_bytes)
            if attempt.succeeded and attempt.started is not None and attempt.ended is not None:
                self._durations.add(attempt.ended - attempt.started)

    def predict(self) -> TaskPrediction:
        return TaskPrediction(self._runs, self._memory(), tuple(self._times()))

    def _memory(self) -> MemoryPrediction | None:
        predicted = self._peaks.predict()
        if predicted is None:
            return None
        asked = -(-predicted // _STEP_BYTES) * _STEP_BYTES
        peaks = self._peaks.peaks
        return MemoryPrediction(
            asked,
            len(peaks),
            self._peaks.confidence,
            peaks.share_within(asked),
            peaks.largest,
            peaks.median(),
        )

    def _times(self) -> list[DurationPrediction]:
        known = [(one, self._durations.predict(one)) for one in QUANTILES]
        return [
            DurationPrediction(quantile, ms, self._durations.held(quantile))
            for quantile, ms in known
            if ms is not None
        ]
