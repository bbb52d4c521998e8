"""What the starter knows of each attempt to run a job, in memory and as lines of the journal."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from typing import Any

from gridhand.agent import processes
from gridhand.agent.journal import Record

Key = tuple[str, int]


class Attempt:
    """One run of a command: begun, perhaps running, then ended once and for all."""

    __slots__ = (
        "attempt", "begun", "boot", "cgroups", "doomed", "end", "fence", "inherited", "job", "note",
        "pid", "start", "waiting", "written",
    )  # fmt: skip

    def __init__(
        self,
        job: str,
        attempt: int,
        fence: int | str | None,
        cgroups: list[str],
        boot: str,
        note: Record | None = None,
    ) -> None:
        self.job, self.attempt, self.fence, self.boot = job, attempt, fence, boot
        self.cgroups = cgroups
        self.note = note  # the client's own words on it
        self.begun = {"begun_ms": processes.wall_ms(), "begun_boot_ms": processes.boot_ms()}
        self.pid: int | None = None
        self.start: int | None = None
        self.end: Record | None = None
        self.doomed = ""  # why it is being killed before it has really begun
        self.inherited = False  # another starter's child, so nobody is told how it ends
        self.written = True  # whether its end is on disk
        self.waiting = False  # for another of the same fence to be over

    @property
    def key(self) -> Key:
        return self.job, self.attempt

    def begin(self) -> None:
        """Its turn has come."""
        self.waiting = False
        self.begun = {"begun_ms": processes.wall_ms(), "begun_boot_ms": processes.boot_ms()}

    def intent(self) -> Record:
        return {
            "do": "wait" if self.waiting else "begin",
            **self.name(),
            "fence": self.fence,
            "cgroups": self.cgroups,
            "boot": self.boot,
            **self._noted(),
            **self.begun,
        }

    def started(self) -> Record:
        return {"do": "started", **self.name(), "pid": self.pid, "start": self.start}

    def ended(self) -> Record:
        return {"do": "ended", **self.name(), "end": self.end}

    def records(self) -> Iterator[Record]:
        """The lines that lead to what is known of it."""
        yield self.intent()
        if self.pid is not None:
            yield self.started()
        if self.end is not None:
            yield self.ended()

    def name(self) -> Record:
        return {"job": self.job, "attempt": self.attempt}

    def _noted(self) -> Record:
        return {} if self.note is None else {"note": self.note}

    def told(self) -> Record:
        """What clients are told of it."""
        return {
            **self.name(),
            "fence": self.fence,
            "state": self.state,
            "pid": self.pid,
            "start": self.start,
            **self._noted(),
            **self.begun,
            **({} if self.end is None else {"end": self.end, "written": self.written}),
        }

    @property
    def state(self) -> str:
        if self.end is not None:
            return "ended"
        return "waiting" if self.waiting else "running"

    def finish(self, reason: str, **facts: Any) -> None:
        now = {"ended_ms": processes.wall_ms(), "ended_boot_ms": processes.boot_ms()}
        self.end = {"reason": reason, **facts, **now}
        self.written = False

    def exited(self, status: int, usage: Any) -> None:
        """Its process was reaped with this wait status and use."""
        facts: Record = {"status": status}
        if self.doomed:
            reason, facts["message"] = "start_failed", self.doomed
        elif os.WIFSIGNALED(status):
            reason, facts["signal"] = "signal", os.WTERMSIG(status)
            facts["message"] = _signal_words(facts["signal"])
        else:
            reason, facts["code"] = "exit", os.WEXITSTATUS(status)
        self.finish(
            reason,
            **facts,
            user_us=round(usage.ru_utime * 1e6),
            system_us=round(usage.ru_stime * 1e6),
            peak_bytes=usage.ru_maxrss * 1024,
        )


def _signal_words(signum: int) -> str:
    return f"ended by signal {signum} ({signal.strsignal(signum) or 'unknown'})"


class Attempts:
    """All attempts that are not forgotten, and the highest epoch that was seen."""

    def __init__(self, boot: str) -> None:
        self.boot = boot
        self.epoch = -1
        self.mark = ""  # the same for all starters of a folder, and for no other
        self.known: dict[Key, Attempt] = {}
        self.running: dict[int, Attempt] = {}  # by pid, children of this process only

    def begin(
        self,
        job: str,
        number: int,
        fence: int | str | None,
        groups: list[str],
        note: Record | None = None,
    ) -> Attempt:
        attempt = Attempt(job, number, fence, groups, self.boot, note)
        self.known[attempt.key] = attempt
        return attempt

    def forget(self, keys: Iterable[Key]) -> list[Attempt]:
        """Forget those that have ended; the others, and unknown ones, are left as they are."""
        gone = [key for key in keys if key in self.known and self._may_go(self.known[key])]
        return [self.known.pop(key) for key in dict.fromkeys(gone)]

    def _may_go(self, attempt: Attempt) -> bool:
        return attempt.end is not None and attempt.written

    def marking(self) -> Record:
        return {"do": "mark", "mark": self.mark}

    def replay(self, record: Record) -> bool:
        """Take over one line of the journal; False when it makes no sense."""
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
                attempt = Attempt(
                    record["job"],
                    record["attempt"],
                    record["fence"],
                    record["cgroups"],
                    record["boot"],
                    record.get("note"),
                )
                attempt.begun = {name: record[name] for name in attempt.begun}
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

    def lose(self) -> list[Attempt]:
        """End what an earlier starter began and did not see the end of."""
        lost = [attempt for attempt in self.known.values() if attempt.end is None]
        for attempt in lost:
            if attempt.waiting and attempt.boot == self.boot:
                # It is written down before one begins, so this one has not.
                attempt.finish("returned", message="it had not begun when the starter ended")
                continue
            message = "exit status unknown: the starter that was its parent has ended"
            if attempt.boot != self.boot:
                message = "exit status unknown: the machine was booted since"
            attempt.finish("lost", message=message)
        return lost

    def records(self) -> Iterator[Record]:
        yield self.marking()
        yield {"do": "epoch", "epoch": self.epoch}
        for attempt in self.known.values():
            yield from attempt.records()
