"""RunningAttempt: the agent's state of one attempt, and the note that outlives the agent."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from gridhand.agent.jobs.capped_log import CappedLog, UnseenLog
from gridhand.agent.jobs.limits import Groups
from gridhand.agent.messages import AttemptReport, EndReport, Key
from gridhand.agent.starter.message_fields import Fence, LeaderEnd, StarterReport
from gridhand.core.model.names import AllocationId, JobId
from gridhand.posix import boot_clock
from gridhand.posix.procfs import ProcessIdentity, is_stopped

_NO_CAP = 1 << 62
_BOOTED = "the machine was booted since"


@dataclass(frozen=True, slots=True)
class AttemptNote:
    """All that must outlive the agent. Times are milliseconds since boot, sizes are bytes."""

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
    of_user: bool = False  # it is another user's, whose own files are not looked at
    warn_signal: int | None = None
    warn_ms: int | None = None  # before its time limit

    def encode(self) -> dict[str, Any]:
        """Return the fields that differ from the defaults: each job has a note in the journal."""
        pairs = ((name, getattr(self, name)) for name in _FIELDS)
        return {name: value for name, value in pairs if value != _DEFAULTS[name]}

    @classmethod
    def decode(cls, raw: dict[str, Any] | None) -> AttemptNote:
        """Return the note that an agent of this or another version wrote; skip unknown fields."""
        return cls(**{name: value for name, value in (raw or {}).items() if name in _DEFAULTS})

    def logs(self) -> list[CappedLog]:
        """Return its log files: one, if both streams go into the same."""
        files = zip(("stdout", "stderr"), (self.stdout, self.stderr), self.bases, strict=True)
        caps = {
            path: (_NO_CAP if name in self.kept else self.log_bytes, base)
            for name, path, base in files
        }
        hidden = {getattr(self, name) for name in self.kept} if self.of_user else set()
        return [
            UnseenLog(path, cap, base) if path in hidden else CappedLog(path, cap, base)
            for path, (cap, base) in caps.items()
        ]


_DEFAULTS = asdict(AttemptNote())
_FIELDS = tuple(_DEFAULTS)


class RunningAttempt:
    """One attempt as the agent has it: starting, running, perhaps being stopped, then over."""

    __slots__ = (
        "begun_boot_ms", "begun_ms", "clearing", "deadline", "end", "exit", "fence",
        "forewarned", "job", "kill_at", "logs", "message", "note", "number", "paused", "peak",
        "pid", "seen", "settled", "start", "stopping", "stuck", "waiting_since", "warned",
    )  # fmt: skip

    def __init__(self, job: JobId, number: int, fence: Fence | None, note: AttemptNote) -> None:
        self.job, self.number, self.fence, self.note = job, number, fence, note
        self.pid: int | None = None
        self.start = 0
        self.begun_ms: int | None = None  # on the wall clock
        self.begun_boot_ms: int | None = None  # since boot
        self.exit: LeaderEnd | None = None  # how its leader ended, as the starter reports
        self.end: EndReport | None = None  # how all of it ended, as the controller is told
        self.stopping = ""  # the reason for which it is being stopped
        self.message = ""  # and the sentence about it
        self.kill_at = 0  # in milliseconds since boot: when SIGKILL follows the warning
        self.warned = False
        self.settled = asyncio.Event()  # set once it is known whether it was started
        self.waiting_since: int | None = None  # for its turn, in milliseconds since boot
        self.clearing: asyncio.Task[None] | None = None
        self.deadline: asyncio.TimerHandle | None = None
        self.forewarned = False  # it got the signal before its time limit
        self.stuck: list[int] = []  # processes that do not die
        self.peak = 0
        self.seen: set[ProcessIdentity] = set()  # its processes, if no control group knows them
        self.logs = note.logs()
        self.paused = False  # its reader is far behind

    def note_reader(self, offsets: Mapping[str, int]) -> None:
        """Take note how far an attached client has read each stream; nobody reads without any."""
        for log in self.logs:
            streams = {self.note.stderr: "stderr", self.note.stdout: "stdout"}
            log.reader = offsets.get(streams[log.path])

    @classmethod
    def adopted(cls, report: StarterReport) -> RunningAttempt:
        """Return the attempt of an earlier agent, as the starter reports it."""
        note = AttemptNote.decode(report.get("note"))
        run = cls(JobId(report["job"]), report["attempt"], report["fence"], note)
        run.update(report)
        run.settled.set()
        run.paused = run.alive and is_stopped(run.pid or 0)  # perhaps by that agent
        return run

    def update(self, report: StarterReport) -> None:
        """Take over what the starter reports; the same report again changes nothing."""
        if report["pid"] is not None:  # a starter that has lost its journal knows less than we do
            self.pid, self.start = report["pid"], report["start"] or 0
        if report["state"] == "waiting":
            if self.waiting_since is None:
                self.waiting_since = boot_clock.boot_ms()
            return
        self.waiting_since = None
        self.begun_ms, self.begun_boot_ms = report["begun_ms"], report["begun_boot_ms"]
        if report["state"] == "ended" and self.exit is None:
            self.exit = report["end"]

    @property
    def may_have_begun(self) -> bool:
        """Whether it has or had processes. Of a lost attempt the starter may not know the pid."""
        return self.pid is not None or (self.exit is not None and self.exit["reason"] == "lost")

    @property
    def key(self) -> Key:
        return self.job, self.number

    @property
    def tree_name(self) -> str:
        """Its name where a key must be a text."""
        return f"{self.job} {self.number}"

    @property
    def groups(self) -> Groups:
        return Groups(*self.note.groups)

    @property
    def identity(self) -> ProcessIdentity | None:
        return None if self.pid is None else ProcessIdentity(self.pid, self.start)

    @property
    def due(self) -> int | None:
        """The end of its time limit, in milliseconds since boot."""
        begun, limit = self.begun_boot_ms, self.note.time_limit_ms
        return None if begun is None or limit is None else begun + limit

    @property
    def warn_due(self) -> int | None:
        """When it gets the signal before its time limit, in milliseconds since boot."""
        before = self.note.warn_ms
        return None if self.due is None or before is None or self.forewarned else self.due - before

    @property
    def alive(self) -> bool:
        """Whether its leader was started and is not known to have ended."""
        return self.pid is not None and self.exit is None

    def report(self) -> AttemptReport:
        """Return its state for the controller."""
        return AttemptReport(
            self.job,
            self.number,
            None if self.fence is None else AllocationId(str(self.fence)),
            "running" if self.end is None else "ended",
            self.pid,
            self.begun_ms,
            ran_ms=self._ran_ms(None) if self.alive else None,
            stopping=self.stopping or None,
            end=self.end,
        )

    def close(self, killed: int, peak: int | None) -> None:
        """Set its end: no process is left. `killed` is how many the OOM killer took."""
        end: LeaderEnd = self.exit or {"reason": "lost", "message": "exit status unknown"}
        peaks = [one for one in (peak, self.peak, end.get("peak_bytes")) if one]
        most = max(peaks, default=None) if peak is None else max(peak, self.peak)
        reason, message = self._reason(end, killed, most)
        sizes = [log.finish() for log in self.logs]
        self.end = EndReport(
            reason,
            message,
            end.get("code"),
            end.get("signal"),
            most,
            self._ran_ms(end),
            sizes[0],
            sizes[-1],
            self.stopping or None,
            min(boot_clock.boot_ms(), end.get("ended_boot_ms", boot_clock.boot_ms())),
        )

    @property
    def failed(self) -> bool:
        """Whether it ended by itself, and not well."""
        if self.end is None:
            return False
        return self.end.reason == "signal" or (self.end.reason == "exit" and self.end.code != 0)

    def add_message(self, text: str) -> None:
        assert self.end is not None
        self.end.message = "; ".join(filter(None, (self.end.message, text)))

    def _reason(self, end: LeaderEnd, killed: int, peak: int | None) -> tuple[str, str]:
        """Return the reason and the message of the end."""
        reason, message = end["reason"], str(end.get("message", ""))
        if reason == "lost":
            reason = "node_lost" if _BOOTED in message else "agent_lost"
            return (self.stopping, self.stop_message(peak)) if self.stopping else (reason, message)
        if reason == "start_failed":
            return reason, message
        if self.stopping:
            return self.stopping, self.stop_message(peak)
        if reason == "returned":
            return reason, message
        if killed:
            self.stopping = "oom"
            return "oom", self.stop_message(peak)
        if self._overran(end):
            return "timeout", overrun_message(self.note.time_limit_ms or 0)
        if reason == "exit" and end.get("code"):
            message = f"it exited with code {end['code']}"
        return reason, message

    def stop_message(self, peak: int | None) -> str:
        """Return why it is being stopped, as a sentence for people."""
        limit = self.note.memory_bytes
        if self.stopping != "oom" or limit is None:
            return self.message
        most = "" if peak is None else f", peak {amount(peak)}"
        return f"killed: out of memory (limit {amount(limit)}{most})"

    def _overran(self, end: LeaderEnd) -> bool:
        """Return whether an earlier agent must have stopped it at its time limit."""
        late = self.due is not None and end["ended_boot_ms"] >= self.due
        return late and end.get("signal") in (9, 15)

    def _ran_ms(self, end: LeaderEnd | None) -> int | None:
        """Return how long it ran, until its end or until now; None if its end is not known."""
        begun, until = self.begun_boot_ms, boot_clock.boot_ms()
        if end is not None and end["reason"] == "lost":
            return None
        if begun is None:
            return 0
        if end is not None:
            if end["reason"] in ("start_failed", "returned"):
                return 0
            until = end.get("ended_boot_ms", until)
        return max(0, until - begun)


def overrun_message(limit_ms: int) -> str:
    return f"it ran longer than its limit of {limit_ms / 1000:g} s and was ended"


def amount(count: int) -> str:
    """Return bytes in a unit that people use.

    >>> amount(231_400_000), amount(1_500_000_000), amount(900)
    ('231 MB', '1.5 GB', '900 bytes')
    """
    for unit, name in ((10**9, "GB"), (10**6, "MB"), (10**3, "kB")):
        if count >= unit:
            scaled = count / unit
            return f"{scaled:.3g} {name}" if scaled < 100 else f"{scaled:.0f} {name}"
    return f"{count} bytes"
