"""The starter's attempts to run jobs, in memory and as lines of its journal."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypedDict

from gridhand.agent.starter.journal import Record
from gridhand.agent.starter.message_fields import Fence, Key, LeaderEnd, StarterReport
from gridhand.posix import boot_clock


class _Begun(TypedDict):
    begun_ms: int  # on the wall clock
    begun_boot_ms: int  # since boot


class StartedAttempt:
    """One run of a command: begun, perhaps running, then ended once and for all."""

    __slots__ = (
        "attempt", "begun", "boot", "cgroups", "doomed", "end", "fence", "inherited", "job", "note",
        "pid", "start", "uid", "waiting", "written",
    )  # fmt: skip

    def __init__(
        self,
        job: str,
        attempt: int,
        fence: Fence | None,
        cgroups: list[str],
        boot: str,
        note: dict[str, Any] | None = None,
        uid: int | None = None,
    ) -> None:
        self.job, self.attempt, self.fence, self.boot = job, attempt, fence, boot
        self.cgroups = cgroups
        self.note = note  # kept for the agent
        self.uid = uid  # of its user, if that is not the starter's own
        self.begun = _now()
        self.pid: int | None = None
        self.start: int | None = None
        self.end: LeaderEnd | None = None
        self.doomed = ""  # why it is being killed before it has really begun
        self.inherited = False  # a child of an earlier starter, so its exit status is not known
        self.written = True  # whether its end is on disk
        self.waiting = False  # for another attempt with the same fence to be over

    @property
    def key(self) -> Key:
        return self.job, self.attempt

    def begin(self) -> None:
        """Stop waiting: its turn has come."""
        self.waiting = False
        self.begun = _now()

    def intent(self) -> Record:
        """Return the journal line that is written before it is started or waits."""
        return {
            "do": "wait" if self.waiting else "begin",
            **self._name(),
            "fence": self.fence,
            "cgroups": self.cgroups,
            "boot": self.boot,
            **({} if self.note is None else {"note": self.note}),
            **({} if self.uid is None else {"uid": self.uid}),
            **self.begun,
        }

    def started(self) -> Record:
        return {"do": "started", **self._name(), "pid": self.pid, "start": self.start}

    def ended(self) -> Record:
        return {"do": "ended", **self._name(), "end": self.end}

    def records(self) -> Iterator[Record]:
        """Yield the journal lines that lead to its present state."""
        yield self.intent()
        if self.pid is not None:
            yield self.started()
        if self.end is not None:
            yield self.ended()

    def _name(self) -> Record:
        return {"job": self.job, "attempt": self.attempt}

    def report(self) -> StarterReport:
        """Return the report of it that clients get."""
        report: StarterReport = {
            "job": self.job,
            "attempt": self.attempt,
            "fence": self.fence,
            "state": self.state,
            "pid": self.pid,
            "start": self.start,
            "begun_ms": self.begun["begun_ms"],
            "begun_boot_ms": self.begun["begun_boot_ms"],
        }
        if self.note is not None:
            report["note"] = self.note
        if self.end is not None:
            report["end"], report["written"] = self.end, self.written
        return report

    @property
    def state(self) -> str:
        if self.end is not None:
            return "ended"
        return "waiting" if self.waiting else "running"

    def finish(self, end: LeaderEnd) -> None:
        """End it now, and mark the end as not yet written."""
        end["ended_ms"], end["ended_boot_ms"] = boot_clock.wall_ms(), boot_clock.boot_ms()
        self.end = end
        self.written = False

    def exited(self, status: int, usage: resource.struct_rusage) -> None:
        """End it: its process was reaped with this wait status and resource usage."""
        end: LeaderEnd = {
            "reason": "exit",
            "status": status,
            "user_us": round(usage.ru_utime * 1e6),
            "system_us": round(usage.ru_stime * 1e6),
            "peak_bytes": usage.ru_maxrss * 1024,
        }
        if self.doomed:
            end["reason"], end["message"] = "start_failed", self.doomed
        elif os.WIFSIGNALED(status):
            end["reason"], end["signal"] = "signal", os.WTERMSIG(status)
            end["message"] = _signal_message(end["signal"])
        else:
            end["code"] = os.WEXITSTATUS(status)
        self.finish(end)


def _now() -> _Begun:
    return {"begun_ms": boot_clock.wall_ms(), "begun_boot_ms": boot_clock.boot_ms()}


def _signal_message(signum: int) -> str:
    return f"ended by signal {signum} ({signal.strsignal(signum) or 'unknown'})"


class Attempts:
    """All attempts that are not forgotten, and the highest epoch that was seen."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.epoch = -1
        self.mark = ""  # the same for all starters of a folder, and for no other
        self.known: dict[Key, StartedAttempt] = {}
        self.running: dict[int, StartedAttempt] = {}  # by pid, children of this process only

    def add(
        self,
        job: str,
        number: int,
        fence: Fence | None,
        cgroups: list[str],
        note: dict[str, Any] | None = None,
        uid: int | None = None,
    ) -> StartedAttempt:
        """Add and return a new attempt."""
        attempt = StartedAttempt(job, number, fence, cgroups, self.boot, note, uid)
        self.known[attempt.key] = attempt
        return attempt

    def forget(self, keys: Iterable[Key]) -> list[StartedAttempt]:
        """Remove and return those whose end is on disk; leave the others as they are."""
        gone = [key for key in keys if key in self.known and self._may_go(self.known[key])]
        return [self.known.pop(key) for key in dict.fromkeys(gone)]

    def _may_go(self, attempt: StartedAttempt) -> bool:
        return attempt.end is not None and attempt.written

    def mark_record(self) -> Record:
        return {"do": "mark", "mark": self.mark}

    def replay(self, record: Record) -> bool:
        """Take over one line of the journal; return False if it makes no sense."""
        try:
            self._replay(record)
        except (KeyError, TypeError, ValueError):
            return False
        return True

    def _replay(self, record: Record) -> None:
        match record["do"]:
            case "mark":
                self.mark = str(record["mark"])
            case "epoch":
                self.epoch = max(self.epoch, int(record["epoch"]))
            case "wait" | "begin" as word:
                attempt = StartedAttempt(
                    record["job"],
                    record["attempt"],
                    record["fence"],
                    record["cgroups"],
                    record["boot"],
                    record.get("note"),
                    record.get("uid"),
                )
                attempt.begun = {
                    "begun_ms": record["begun_ms"],
                    "begun_boot_ms": record["begun_boot_ms"],
                }
                attempt.inherited = True
                attempt.waiting = word == "wait"
                self.known[attempt.key] = attempt
            case "started":
                attempt = self.known[record["job"], record["attempt"]]
                attempt.pid, attempt.start = int(record["pid"]), int(record["start"])
            case "ended":
                self.known[record["job"], record["attempt"]].end = record["end"]
            case "forget":
                for job, number in record["attempts"]:
                    self.known.pop((job, number), None)

    def lose(self, has_begun: Callable[[Key], bool]) -> list[StartedAttempt]:
        """End and return the attempts whose end an earlier starter did not see.

        `has_begun` tells of each attempt, if the end of the journal was cut off.
        """
        lost = [attempt for attempt in self.known.values() if attempt.end is None]
        for attempt in lost:
            waited = attempt.waiting and not has_begun(attempt.key)
            if waited and attempt.boot == self.boot:
                # Its begin would be in the journal before it was started, so it was not.
                message = "it had not begun when the starter ended"
                attempt.finish({"reason": "returned", "message": message})
                continue
            message = "exit status unknown: the starter that was its parent has ended"
            if attempt.boot != self.boot:
                message = "exit status unknown: the machine was booted since"
            attempt.finish({"reason": "lost", "message": message})
        return lost

    def records(self) -> Iterator[Record]:
        """Yield the journal lines that lead to the present state."""
        yield self.mark_record()
        yield {"do": "epoch", "epoch": self.epoch}
        for attempt in self.known.values():
            yield from attempt.records()
