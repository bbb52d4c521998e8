"""Run: what the agent knows of one attempt, and the note from which a later agent knows it too."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass, field
from typing import Any

from gridhand.agent import processes
from gridhand.agent.asked import Asked
from gridhand.agent.limits import Groups
from gridhand.agent.logs import Log
from gridhand.agent.procfs import Identity

Facts = dict[str, Any]
Key = tuple[str, int]

_NO_CAP = 1 << 62
_BOOTED = "the machine was booted since"


@dataclass(frozen=True, slots=True)
class Note:
    """What must outlive the agent. Times are milliseconds since boot, sizes are bytes."""

    memory_bytes: int | None = None
    processes: int | None = None
    cores: list[int] | None = None  # its own
    shares: bool = False
    time_limit_ms: int | None = None
    grace_ms: int = 5000
    log_bytes: int = 1 << 62
    stdout: str = ""
    stderr: str = ""
    bases: list[int] = field(default_factory=lambda: [0, 0])
    devices: list[str] = field(default_factory=list)
    groups: list[str | None] = field(default_factory=lambda: [None, None])
    kept: list[str] = field(default_factory=list)  # streams of which nothing is cut out

    def told(self) -> Facts:
        """What differs from the usual: a note is written for each job, and mostly short."""
        pairs = ((name, getattr(self, name)) for name in _FIELDS)
        return {name: value for name, value in pairs if value != _USUAL[name]}

    def logs(self) -> list[Log]:
        """Its files, one if both outputs go into the same."""
        files = zip(("stdout", "stderr"), (self.stdout, self.stderr), self.bases, strict=True)
        caps = {
            path: (_NO_CAP if name in self.kept else self.log_bytes, base)
            for name, path, base in files
        }
        return [Log(path, cap, base) for path, (cap, base) in caps.items()]

    @classmethod
    def read(cls, told: Facts | None) -> Note:
        """What an agent wrote, of this or another version; what is not understood is left out."""
        return cls(**{name: value for name, value in (told or {}).items() if name in _USUAL})


_USUAL = asdict(Note())
_FIELDS = tuple(_USUAL)


class Run:
    """One attempt as the agent has it: starting, running, perhaps being ended, then over."""

    __slots__ = (
        "begun", "clearing", "deadline", "end", "exit", "fence", "job", "kill_at",
        "logs", "message", "note", "number", "peak", "pid", "seen", "settled", "start",
        "stopping", "stuck", "waiting_since", "warned",
    )  # fmt: skip

    def __init__(self, job: str, number: int, fence: Any, note: Note) -> None:
        self.job, self.number, self.fence, self.note = job, number, fence, note
        self.pid: int | None = None
        self.start = 0
        self.begun: Facts = {}
        self.exit: Facts | None = None  # how its leader ended, as the starter tells
        self.end: Facts | None = None  # how it all ended, as the controller is told
        self.stopping = ""  # the reason it is being ended for
        self.message = ""  # and the words
        self.kill_at = 0  # in milliseconds since boot: from then on nobody is spared
        self.warned = False
        self.settled = asyncio.Event()  # it is known whether it was started
        self.waiting_since: int | None = None  # for its turn, in milliseconds since boot
        self.clearing: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.stuck: list[int] = []  # processes that would not die
        self.peak = 0
        self.seen: set[Identity] = set()  # of its processes, where no group knows them
        self.logs = note.logs()

    @classmethod
    def of(cls, asked: Asked, note: Note) -> Run:
        return cls(asked.job, asked.attempt, asked.fence, note)

    @classmethod
    def adopted(cls, told: Facts) -> Run:
        """One that an agent before us has started, as the starter tells of it."""
        run = cls(told["job"], told["attempt"], told["fence"], Note.read(told.get("note")))
        run.took(told)
        run.settled.set()
        return run

    def took(self, told: Facts) -> None:
        """What the starter tells of it; telling it again changes nothing."""
        self.pid, self.start = told["pid"], told["start"] or 0
        if told["state"] == "waiting":
            if self.waiting_since is None:
                self.waiting_since = processes.boot_ms()
            return
        self.waiting_since = None
        self.begun = {name: told[name] for name in ("begun_ms", "begun_boot_ms")}
        if told["state"] == "ended" and self.exit is None:
            self.exit = told["end"]

    @property
    def key(self) -> Key:
        return self.job, self.number

    @property
    def job_name(self) -> str:
        """One name for the attempt, where a key must be a text."""
        return f"{self.job} {self.number}"

    @property
    def groups(self) -> Groups:
        return Groups(*self.note.groups)

    @property
    def identity(self) -> Identity | None:
        return None if self.pid is None else Identity(self.pid, self.start)

    @property
    def due(self) -> int | None:
        """When its time is over, in milliseconds since boot."""
        begun, limit = self.begun.get("begun_boot_ms"), self.note.time_limit_ms
        return None if begun is None or limit is None else int(begun) + limit

    @property
    def alive(self) -> bool:
        """Whether its leader has been started and was not heard to have ended."""
        return self.pid is not None and self.exit is None

    def fact(self) -> Facts:
        """What the controller is told of it."""
        over = {} if self.end is None else {"end": self.end}
        return {
            "job": self.job,
            "attempt": self.number,
            "fence": self.fence,
            "state": "running" if self.end is None else "ended",
            "pid": self.pid,
            "begun_ms": self.begun.get("begun_ms"),
            **({"ran_ms": self._ran_ms({"reason": ""})} if self.alive else {}),
            **({"stopping": self.stopping} if self.stopping else {}),
            **over,
        }

    def close(self, killed: int, peak: int | None) -> None:
        """It is all over: nothing of it is left. `killed` is how many the kernel killed."""
        told = self.exit or {"reason": "lost", "message": "exit status unknown"}
        peaks = [one for one in (peak, self.peak, told.get("peak_bytes")) if one]
        most = max(peaks, default=None) if peak is None else max(peak, self.peak)
        reason, message = self._reason(told, killed, most)
        sizes = [log.finish() for log in self.logs]
        self.end = {
            "reason": reason,
            "code": told.get("code"),
            "signal": told.get("signal"),
            "message": message,
            "peak_bytes": most,
            "ran_ms": self._ran_ms(told),
            "stdout_bytes": sizes[0],
            "stderr_bytes": sizes[-1],
            "stopping": self.stopping or None,
        }

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, and not well."""
        end = self.end or {}
        return end.get("reason") == "signal" or (end.get("reason") == "exit" and end["code"] != 0)

    def add_words(self, words: str) -> None:
        assert self.end is not None
        self.end["message"] = "; ".join(filter(None, (self.end["message"], words)))

    def _reason(self, told: Facts, killed: int, peak: int | None) -> tuple[str, str]:
        reason, words = told["reason"], str(told.get("message", ""))
        if reason == "lost":
            reason = "node_lost" if _BOOTED in words else "agent_lost"
            return (self.stopping, self.words(peak)) if self.stopping else (reason, words)
        if reason == "start_failed":
            return reason, words
        if self.stopping:
            return self.stopping, self.words(peak)
        if reason == "returned":
            return reason, words
        if killed:
            self.stopping = "oom"
            return "oom", self.words(peak)
        if self._overran(told):
            return "timeout", overrun(self.note.time_limit_ms or 0)
        if reason == "exit" and told.get("code"):
            words = f"it exited with code {told['code']}"
        return reason, words

    def words(self, peak: int | None) -> str:
        """Why it is being ended, as a sentence for people."""
        limit = self.note.memory_bytes
        if self.stopping != "oom" or limit is None:
            return self.message
        had = f"its {amount(limit)} of memory"
        if peak is None:
            return f"it needed more than {had} and was ended"
        used = "used" if peak > limit else "needed"  # the kernel lets nobody use more
        return f"it {used} more than {had}: {amount(peak)} at the peak, and was ended"

    def _overran(self, told: Facts) -> bool:
        """Whether an agent before us must have ended it: then nobody remembers why."""
        late = self.due is not None and told["ended_boot_ms"] >= self.due
        return late and told.get("signal") in (9, 15)

    def _ran_ms(self, told: Facts) -> int:
        begun = self.begun.get("begun_boot_ms")
        until = told.get("ended_boot_ms", processes.boot_ms())
        if begun is None or told["reason"] in ("lost", "start_failed", "returned"):
            return 0
        return max(0, int(until) - int(begun))


def overrun(limit_ms: int) -> str:
    return f"it ran longer than its limit of {limit_ms / 1000:g} s and was ended"


def amount(count: int) -> str:
    """Bytes as people say them.

    >>> amount(231_400_000), amount(1_500_000_000), amount(900)
    ('231 MB', '1.5 GB', '900 bytes')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            scaled = count / unit
            return f"{scaled:.3g} {name}" if scaled < 100 else f"{scaled:.0f} {name}"
    return f"{count} bytes"
