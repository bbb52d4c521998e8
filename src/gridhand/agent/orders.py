"""What clients may ask of the starter: read strictly, and all of it before any of it is done."""

from __future__ import annotations

import json
import os
import signal
from typing import Any, NamedTuple, Never

LINE_BYTES = 1 << 20  # the longest message
START_BYTES = 16 << 20  # and the longest that starts something
_MOST_NUMBER = 2**53
_MOST_CORE = 8192
NOTE_BYTES = 16 << 10
_ORDER = frozenset(
    {"job", "attempt", "fence", "argv", "cwd", "env", "cores", "stdin", "stdout", "stderr"}
    | {"cgroups"}
)


class Malformed(Exception):
    """It cannot be read; nothing was changed."""


class Order(NamedTuple):
    """A command to start. What the kernel is given is bytes, so no locale can alter it."""

    job: str
    attempt: int
    fence: int | str | None
    argv: list[bytes]
    cwd: bytes
    env: dict[bytes, bytes]
    cores: list[int] | None
    stdin: bytes | None
    stdout: bytes
    stderr: bytes
    cgroups: list[str]
    note: dict[str, Any] | None = None  # what the client wants to be told again


def message(text: bytes) -> dict[str, Any]:
    found = read(text)
    if len(text) > (START_BYTES if found["do"] == "start" else LINE_BYTES):
        raise Malformed(f"longer than {LINE_BYTES} bytes, or {START_BYTES} for a start")
    return found


def read(text: bytes) -> dict[str, Any]:
    """A message of any length."""
    try:
        found = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a line of JSON: {error}") from None
    if not isinstance(found, dict) or not isinstance(found.get("do"), str):
        raise Malformed('not a message: give an object with "do"')
    return found


def _refuse(constant: str) -> Never:
    raise ValueError(f"{constant} is not a number")


def orders(raw: object) -> list[Order]:
    if not isinstance(raw, list):
        raise Malformed("jobs: give a list")
    return [_order(one) for one in raw]


def _order(raw: object) -> Order:
    if not isinstance(raw, dict) or raw.keys() - {"note"} != _ORDER:
        odd = set(raw) - {"note"} ^ _ORDER if isinstance(raw, dict) else ()
        raise Malformed(f"jobs: missing or unknown: {', '.join(sorted(map(str, odd)))}")
    argv = [_bytes("argv", text) for text in _strings("argv", raw["argv"])]
    if not argv or not argv[0]:
        raise Malformed("argv: give at least the name of a command")
    stdin = raw["stdin"]
    return Order(
        job_of(raw),
        attempt_of(raw),
        _fence(raw["fence"]),
        argv,
        _path("cwd", raw["cwd"]),
        _environment(raw["env"]),
        _cores(raw["cores"]),
        None if stdin is None else _path("stdin", stdin),
        _path("stdout", raw["stdout"]),
        _path("stderr", raw["stderr"]),
        [os.fsdecode(_path("cgroups", one)) for one in _strings("cgroups", raw["cgroups"])],
        _note(raw.get("note")),
    )


def job_of(raw: dict[str, Any]) -> str:
    job = raw.get("job")
    if not isinstance(job, str) or not 0 < len(job) <= 200:
        raise Malformed("job: give a name of 1 to 200 characters")
    _bytes("job", job)
    return job


def attempt_of(raw: dict[str, Any]) -> int:
    return whole("attempt", raw.get("attempt"))


def whole(field: str, value: object, most: int = _MOST_NUMBER) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise Malformed(f"{field}: give a whole number from 0 to {most}")
    return value


def signal_of(raw: dict[str, Any]) -> int:
    number = whole("signal", raw.get("signal", int(signal.SIGTERM)), 64)
    if number not in signal.valid_signals():
        raise Malformed(f"signal: there is no signal {number}")
    return number


def flag(raw: dict[str, Any], field: str) -> bool:
    value = raw.get(field, False)
    if not isinstance(value, bool):
        raise Malformed(f"{field}: give true or false")
    return value


def keys(raw: object) -> list[tuple[str, int]]:
    """Pairs of job and attempt."""
    if not isinstance(raw, list):
        raise Malformed("attempts: give a list of [job, attempt]")
    found = []
    for pair in raw:
        if not isinstance(pair, list) or len(pair) != 2:
            raise Malformed("attempts: give a list of [job, attempt]")
        found.append((job_of({"job": pair[0]}), attempt_of({"attempt": pair[1]})))
    return found


def _fence(value: object) -> int | str | None:
    if value is None or type(value) is int:
        return value
    if isinstance(value, str) and len(value) <= 200:
        return value
    raise Malformed("fence: give a whole number, a short text or null")


def _note(value: object) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or len(json.dumps(value)) > NOTE_BYTES:
        raise Malformed(f"note: give an object of at most {NOTE_BYTES} bytes")
    return value


def _strings(field: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise Malformed(f"{field}: give a list of texts")
    return value


def _bytes(field: str, value: object) -> bytes:
    if not isinstance(value, str) or "\0" in value:
        raise Malformed(f"{field}: give a text without NUL")
    try:
        return value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Malformed(f"{field}: has characters that are not text") from None


def _path(field: str, value: object) -> bytes:
    path = _bytes(field, value)
    if not path.startswith(b"/"):
        raise Malformed(f"{field}: give a path that begins with /")
    return path


def _environment(value: object) -> dict[bytes, bytes]:
    if not isinstance(value, dict):
        raise Malformed("env: give an object of texts")
    if any(not name or "=" in name for name in value):
        raise Malformed("env: a name is not empty and has no =")
    return {_bytes("env", name): _bytes("env", text) for name, text in value.items()}


def _cores(value: object) -> list[int] | None:
    if value is None:
        return None
    if not isinstance(value, list) or not value:
        raise Malformed("cores: give a list of core numbers, or null")
    return [whole("cores", core, _MOST_CORE) for core in value]
