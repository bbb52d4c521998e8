"""The messages between an agent and its starter.

`StarterOrder` is what a start carries; the typed dictionaries are what it reports.
Small requests are read strictly. Of an order only the shape is checked: the agent, which has the
socket that controllers speak to, has checked the values.
"""

from __future__ import annotations

import json
import signal
from typing import Any, NamedTuple, Never, NotRequired, TypedDict

LINE_BYTES = 1 << 20  # the longest message
START_BYTES = 16 << 20  # and the longest one that starts jobs
_LARGEST_NUMBER = 2**53
_LARGEST_EPOCH = 2**60
_LARGEST_ID = 2**32 - 2  # of users and groups; the next number stands for "none" in system calls
_OWN_FILES = {(name, how) for name in ("stdout", "stderr") for how in ("empty", "append")}

Key = tuple[str, int]  # a job and the number of its attempt
Fence = int | str
Message = dict[str, Any]  # a request as it was read, before its fields are checked


class LeaderEnd(TypedDict):
    """How the first process of an attempt ended."""

    reason: str  # exit, signal, start_failed, lost or returned
    ended_ms: NotRequired[int]  # on the wall clock
    ended_boot_ms: NotRequired[int]  # since boot
    message: NotRequired[str]
    shortage: NotRequired[str]  # why the node could start no command at all
    status: NotRequired[int]  # as wait() has it
    code: NotRequired[int]
    signal: NotRequired[int]
    user_us: NotRequired[int]
    system_us: NotRequired[int]
    peak_bytes: NotRequired[int]


class StarterReport(TypedDict):
    """All that the starter knows of one attempt."""

    job: str
    attempt: int
    fence: Fence | None
    state: str  # running, waiting, ended, or refused
    pid: int | None
    start: int | None
    begun_ms: int
    begun_boot_ms: int
    note: NotRequired[dict[str, Any]]
    end: NotRequired[LeaderEnd]
    written: NotRequired[bool]  # whether the end is on disk
    survivors: NotRequired[list[int]]  # processes left although the leader has ended
    message: NotRequired[str]  # why it is refused


class StarterListing(TypedDict):
    """The answer to `list`."""

    running: list[StarterReport]
    ended: list[StarterReport]
    trouble: str  # why the journal cannot be written


class StarterEvent(TypedDict):
    """An event for watchers: attempts that have `begun` by themselves, or have `ended`."""

    event: str
    attempts: list[StarterReport]
    strays: NotRequired[bool]  # whether processes may be left whose leader has ended


class StarterGreeting(TypedDict):
    """The answer to `hello`."""

    version: str
    protocol: int
    boot_id: str
    pid: int
    start: int | None
    epoch: int
    mark: str  # the same for all starters of a folder, and for no other
    trouble: str
    damaged_lines: int


class Malformed(Exception):
    """A message cannot be read; nothing was changed."""


class OrderUser(TypedDict):
    """The user that a command runs as, and the streams that go to files that the user named."""

    uid: int
    gid: int
    groups: list[int]
    own_files: dict[str, str]  # by stream: "empty" them first, or "append"


class StarterOrder(NamedTuple):
    """A command to start, with all that the agent has decided about it.

    `note` is opaque: the starter keeps it and reports it, so that the next agent knows it.
    """

    job: str
    attempt: int
    fence: Fence | None
    argv: list[str]
    cwd: str
    env: dict[str, str]
    cores: list[int] | None
    stdin: str | None
    stdout: str
    stderr: str
    cgroups: list[str]
    note: dict[str, Any] | None = None
    user: OrderUser | None = None  # None: the user of the starter itself

    def encode(self) -> str:
        """Return it as JSON, for a start message."""
        fields = self._asdict()
        for name in ("note", "user"):
            if fields[name] is None:
                del fields[name]
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def decode(cls, raw: object) -> StarterOrder:
        """Return the order that `encode` wrote; fields of a newer agent are left out.

        What names the attempt is checked, since a wrong name would confuse the journal. A value
        that the kernel does not take makes the start of that attempt fail, and nothing else.
        """
        if not isinstance(raw, dict):
            raise Malformed("jobs: give a list of objects")
        job, attempt, fence = job_of(raw), attempt_of(raw), raw.get("fence")
        if isinstance(fence, bool) or not isinstance(fence, Fence | None):
            raise Malformed("fence: give a whole number, a short text or null")
        try:
            rest = {name: raw[name] for name in _REST}
        except KeyError as error:
            raise Malformed(f"jobs: {error.args[0]} is missing") from None
        user = user_of(raw.get("user"))
        return cls(job, attempt, fence, note=raw.get("note"), user=user, **rest)


_REST = StarterOrder._fields[3:-2]


def user_of(raw: object) -> OrderUser | None:
    """Return the user of an order, None if it names none; raise Malformed if it is wrong.

    This is checked strictly: a mistake here would give a command the rights of another user.
    """
    if raw is None:
        return None
    if not isinstance(raw, dict) or raw.keys() != OrderUser.__annotations__.keys():
        raise Malformed("user: give uid, gid, groups and own_files")
    groups, own_files = raw["groups"], raw["own_files"]
    if not isinstance(groups, list):
        raise Malformed("user: give a list of groups")
    for number in (raw["uid"], raw["gid"], *groups):
        whole("user", number, _LARGEST_ID)
    if not isinstance(own_files, dict) or not own_files.items() <= _OWN_FILES:
        raise Malformed('user: own_files are stdout and stderr, "empty" or "append"')
    return {"uid": raw["uid"], "gid": raw["gid"], "groups": groups, "own_files": own_files}


def read_message(text: bytes, longest: int | None = None) -> Message:
    """Return a request; raise Malformed if it is no JSON object with `do`, or too long.

    Without `longest` the limits of the starter hold.
    """
    try:
        message = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise Malformed(f"not a line of JSON: {error}") from None
    if not isinstance(message, dict) or not isinstance(message.get("do"), str):
        raise Malformed('not a message: give an object with "do"')
    longest = longest or (START_BYTES if message["do"] == "start" else LINE_BYTES)
    if len(text) > longest:
        raise Malformed(f"longer than {longest} bytes")
    return message


def _refuse_constant(constant: str) -> Never:
    raise ValueError(f"{constant} is not a number")


def job_of(message: Message) -> str:
    """Return the name of the job; raise Malformed if it is no text of 1 to 200 characters."""
    job = message.get("job")
    if not isinstance(job, str) or not 0 < len(job) <= 200:
        raise Malformed("job: give a name of 1 to 200 characters")
    return text("job", job)


def attempt_of(message: Message) -> int:
    return whole("attempt", message.get("attempt"))


def text(field: str, value: object) -> str:
    """Return a text that the kernel can take; raise Malformed for anything else."""
    if not isinstance(value, str) or "\0" in value:
        raise Malformed(f"{field}: give a text without NUL")
    try:
        value.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Malformed(f"{field}: has characters that are not text") from None
    return value


def whole(field: str, value: object, largest: int = _LARGEST_NUMBER) -> int:
    """Return a whole number from 0 to `largest`; raise Malformed for anything else."""
    if type(value) is not int or not 0 <= value <= largest:
        raise Malformed(f"{field}: give a whole number from 0 to {largest}")
    return value


def epoch_of(message: Message) -> int:
    """Return the epoch. One that is past all others must still leave room for those to come."""
    return whole("epoch", message.get("epoch"), _LARGEST_EPOCH)


def signal_of(message: Message) -> int:
    """Return the signal number; SIGTERM if none is given."""
    number = whole("signal", message.get("signal", int(signal.SIGTERM)), 64)
    if number not in signal.valid_signals():
        raise Malformed(f"signal: there is no signal {number}")
    return number


def receiver_of(message: Message) -> str:
    """Return who gets a signal: the leader, or its process group."""
    to = message.get("to", "group")
    if to not in ("group", "leader"):
        raise Malformed('to: give "group" or "leader"')
    return str(to)


def flag(message: Message, field: str) -> bool:
    value = message.get(field, False)
    if not isinstance(value, bool):
        raise Malformed(f"{field}: give true or false")
    return value


def keys(raw: object) -> list[Key]:
    """Return the pairs of job and attempt in a list of them."""
    if not isinstance(raw, list) or not all(isinstance(p, list) and len(p) == 2 for p in raw):
        raise Malformed("attempts: give a list of [job, attempt]")
    return [(job_of({"job": job}), attempt_of({"attempt": number})) for job, number in raw]
