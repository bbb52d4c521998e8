"""What a controller may ask to be run: read strictly, one order at a time.

An order that makes no sense must not keep the others of its message from running, so it is told as
one that could not be started.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from gridhand.agent.orders import Malformed, attempt_of, flag, job_of, whole

_ORDER = frozenset(
    {"job", "attempt", "fence", "node", "argv", "cwd", "env", "cores", "pin", "memory_bytes"}
    | {"processes", "devices", "gpu_memory", "time_limit_ms", "grace_ms", "stdout", "stderr"}
    | {"stdin", "log_bytes"}
)
_MOST_NAME = 200
_MOST_LINE = 8 << 20  # of one order: the kernel takes no longer list of arguments


class Asked(NamedTuple):
    """One command, and what it is granted. `cores` is in ten-thousandths of a core."""

    job: str
    attempt: int
    fence: str
    node: str
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
    own_files: dict[str, str]  # streams that go to files of its own: empty them, or append

    @property
    def key(self) -> tuple[str, int]:
        return self.job, self.attempt


class Unreadable(NamedTuple):
    """An order that cannot be run, and why."""

    job: str
    attempt: int
    fence: str | None
    message: str

    def fact(self) -> dict[str, Any]:
        nothing = {"pid": None, "begun_ms": None}
        end = {"reason": "start_failed", "code": None, "signal": None, "message": self.message}
        sizes = {"peak_bytes": None, "ran_ms": 0, "stdout_bytes": 0, "stderr_bytes": 0}
        name = {"job": self.job, "attempt": self.attempt, "fence": self.fence}
        return {**name, "state": "ended", **nothing, "end": {**end, **sizes}}


def orders(raw: object) -> list[Asked | Unreadable]:
    if not isinstance(raw, list) or not all(isinstance(one, dict) for one in raw):
        raise Malformed("jobs: give a list of objects")
    return [_read(one) for one in raw]


def _read(raw: dict[str, Any]) -> Asked | Unreadable:
    job, attempt = job_of(raw), attempt_of(raw)
    fence = raw.get("fence")
    try:
        return _order(raw, job, attempt)
    except Malformed as error:
        words = f"the order cannot be read: {error}"
        return Unreadable(job, attempt, fence if isinstance(fence, str) else None, words)


def _order(raw: dict[str, Any], job: str, attempt: int) -> Asked:
    if raw.keys() - {"own_files"} != _ORDER:
        raise Malformed(f"missing or unknown: {', '.join(sorted(map(str, raw.keys() ^ _ORDER)))}")
    argv = _texts("argv", raw["argv"])
    if not argv or not argv[0]:
        raise Malformed("argv: give at least the name of a command")
    stdin = raw["stdin"]
    return Asked(
        job,
        attempt,
        _short("fence", raw["fence"]),
        _text("node", raw["node"]),
        argv,
        _path("cwd", raw["cwd"]),
        _environment(raw["env"]),
        whole("cores", raw["cores"]),
        flag(raw, "pin"),
        _perhaps("memory_bytes", raw["memory_bytes"]),
        _perhaps("processes", raw["processes"]),
        _texts("devices", raw["devices"]),
        _amounts("gpu_memory", raw["gpu_memory"]),
        _perhaps("time_limit_ms", raw["time_limit_ms"]),
        whole("grace_ms", raw["grace_ms"]),
        _path("stdout", raw["stdout"]),
        _path("stderr", raw["stderr"]),
        None if stdin is None else _path("stdin", stdin),
        whole("log_bytes", raw["log_bytes"]),
        _own_files(raw.get("own_files", {})),
    )


def _own_files(value: object) -> dict[str, str]:
    if not isinstance(value, dict) or not value.keys() <= {"stdout", "stderr"}:
        raise Malformed("own_files: give an object of stdout and stderr")
    if not all(mode in ("empty", "append") for mode in value.values()):
        raise Malformed('own_files: give "empty" or "append"')
    return value


def _perhaps(field: str, value: object) -> int | None:
    return None if value is None else whole(field, value)


def _text(field: str, value: object) -> str:
    if not isinstance(value, str) or "\0" in value:
        raise Malformed(f"{field}: give a text without NUL")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Malformed(f"{field}: has characters that are not text") from None
    if len(value) > _MOST_LINE:
        raise Malformed(f"{field}: longer than {_MOST_LINE} characters")
    return value


def _short(field: str, value: object) -> str:
    text = _text(field, value)
    if len(text) > _MOST_NAME:
        raise Malformed(f"{field}: longer than {_MOST_NAME} characters")
    return text


def _texts(field: str, value: object) -> list[str]:
    if not isinstance(value, list):
        raise Malformed(f"{field}: give a list of texts")
    return [_text(field, one) for one in value]


def _path(field: str, value: object) -> str:
    path = _text(field, value)
    if not path.startswith("/"):
        raise Malformed(f"{field}: give a path that begins with /")
    return path


def _environment(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        raise Malformed("env: give an object of texts")
    if any(not name or "=" in name for name in value):
        raise Malformed("env: a name is not empty and has no =")
    return {_text("env", name): _text("env", text) for name, text in value.items()}


def _amounts(field: str, value: object) -> dict[str, int]:
    if not isinstance(value, dict):
        raise Malformed(f"{field}: give an object of whole numbers")
    return {_text(field, name): whole(field, amount) for name, amount in value.items()}
