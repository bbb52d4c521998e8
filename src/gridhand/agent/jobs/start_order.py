"""StartOrder: one command to start on a node, and what it is granted.

The controller makes it, the engine encodes it, and the agent decodes it, strictly: its socket is
where input from outside the node arrives. An order that makes no sense must not keep the others of
its message from running, so it becomes the report of an attempt that could not be started.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from gridhand.agent.messages import AttemptReport, EndReport, Key
from gridhand.agent.starter.message_fields import Malformed, attempt_of, flag, job_of, text, whole
from gridhand.core.model.names import AllocationId, JobId, NodeName
from gridhand.posix.unix_users import UnixUser

_LONGEST_NAME = 200
_LONGEST_PATH = 4096  # the kernel takes no longer ones
_LONGEST_TEXT = 8 << 20  # nor a longer list of arguments


@dataclass(frozen=True, slots=True)
class StartOrder:
    """One command, and what it is granted. `cores` is in ten-thousandths of a core."""

    job: JobId
    attempt: int
    fence: AllocationId
    node: NodeName
    argv: list[str]
    cwd: str
    env: dict[str, str]
    cores: int
    pin: bool
    memory_bytes: int | None
    processes: int | None
    devices: list[str]
    gpu_memory: dict[str, int]
    time_limit_ms: int | None
    grace_ms: int
    stdout: str
    stderr: str
    stdin: str | None
    log_bytes: int
    own_files: dict[str, str] = field(default_factory=dict)
    """The streams that go to files of the job's own: "empty" them first, or "append"."""
    user: UnixUser | None = None
    """The user that it runs as; None for the user of the agent itself."""
    warn_signal: int | None = None
    """The signal that it gets `warn_ms` before its time limit."""
    warn_ms: int | None = None

    @property
    def key(self) -> Key:
        return self.job, self.attempt

    def encode(self) -> dict[str, Any]:
        """Return it as plain data for JSON."""
        fields = {name: getattr(self, name) for name in _FIELDS}
        for name in _LEFT_OUT:  # earlier agents do not know them
            if fields[name] is None:
                del fields[name]
        return fields

    @classmethod
    def decode(cls, raw: dict[str, Any]) -> StartOrder:
        """Return the order in a message; raise Malformed if anything in it is wrong."""
        if raw.keys() - _OPTIONAL != _REQUIRED:
            odd = ", ".join(sorted(map(str, raw.keys() ^ _REQUIRED)))
            raise Malformed(f"missing or unknown: {odd}")
        argv = _texts("argv", raw["argv"])
        if not argv or not argv[0]:
            raise Malformed("argv: give at least the name of a command")
        stdin = raw["stdin"]
        return cls(
            JobId(job_of(raw)),
            attempt_of(raw),
            AllocationId(_text("fence", raw["fence"], _LONGEST_NAME)),
            NodeName(_text("node", raw["node"])),
            argv,
            _path("cwd", raw["cwd"]),
            _environment(raw["env"]),
            whole("cores", raw["cores"]),
            flag(raw, "pin"),
            _optional("memory_bytes", raw["memory_bytes"]),
            _optional("processes", raw["processes"]),
            _texts("devices", raw["devices"]),
            _amounts("gpu_memory", raw["gpu_memory"]),
            _optional("time_limit_ms", raw["time_limit_ms"]),
            whole("grace_ms", raw["grace_ms"]),
            _path("stdout", raw["stdout"]),
            _path("stderr", raw["stderr"]),
            None if stdin is None else _path("stdin", stdin),
            whole("log_bytes", raw["log_bytes"]),
            _own_files(raw.get("own_files", {})),
            _user(raw.get("user")),
            _optional("warn_signal", raw.get("warn_signal")),
            _optional("warn_ms", raw.get("warn_ms")),
        )


_FIELDS = tuple(field.name for field in fields(StartOrder))
_LEFT_OUT = frozenset({"user", "warn_signal", "warn_ms"})
_OPTIONAL = _LEFT_OUT | {"own_files"}
_REQUIRED = frozenset(_FIELDS) - _OPTIONAL
_LARGEST_ID = 2**32 - 2


def decode_orders(raw: object) -> list[StartOrder | AttemptReport]:
    """Return the orders of a start message, or for each that cannot be read how it ended.

    Raises Malformed if the message is no list, or does not even name an attempt.
    """
    if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw):
        raise Malformed("jobs: give a list of objects")
    return [_decode_or_end(one) for one in raw]


def _decode_or_end(raw: dict[str, Any]) -> StartOrder | AttemptReport:
    job, attempt = JobId(job_of(raw)), attempt_of(raw)
    fence = raw.get("fence")
    try:
        return StartOrder.decode(raw)
    except Malformed as error:
        end = EndReport("start_failed", f"the order cannot be read: {error}", ran_ms=0)
        return AttemptReport(
            job, attempt, AllocationId(fence) if isinstance(fence, str) else None, end=end
        )


def _own_files(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not value.keys() <= {"stdout", "stderr"}:
        raise Malformed("own_files: give an object of stdout and stderr")
    if not all(mode in ("empty", "append") for mode in value.values()):
        raise Malformed('own_files: give "empty" or "append"')
    return value


def _user(value: object) -> UnixUser | None:
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 3 or not isinstance(value[2], list):
        raise Malformed("user: give a uid, a gid and a list of groups")
    uid, gid, groups = value
    for number in (uid, gid, *groups):
        whole("user", number, _LARGEST_ID)
    return UnixUser(uid, gid, tuple(groups))


def _optional(name: str, value: object) -> int | None:
    return None if value is None else whole(name, value)


def _text(name: str, value: object, longest: int = _LONGEST_TEXT) -> str:
    if len(found := text(name, value)) > longest:
        raise Malformed(f"{name}: longer than {longest} characters")
    return found


def _texts(name: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise Malformed(f"{name}: give a list of texts")
    _text(name, "".join(value))  # checks all of them in one go
    return value


def _path(name: str, value: object) -> str:
    path = _text(name, value, _LONGEST_PATH)
    if not path.startswith("/"):
        raise Malformed(f"{name}: give a path that begins with /")
    return path


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
        raise Malformed("env: give an object of texts")
    if any(not name or "=" in name for name in value):
        raise Malformed("env: a name is not empty and has no =")
    _text("env", "".join((*value, *value.values())))  # checks all of them in one go
    return value


def _amounts(name: str, value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise Malformed(f"{name}: give an object of whole numbers")
    return {_text(name, device): whole(name, amount) for device, amount in value.items()}
