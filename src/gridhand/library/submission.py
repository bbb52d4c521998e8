"""Submitting: a command as people give it becomes what a controller takes."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gridhand.client import routes
from gridhand.client.routes import new_op_id
from gridhand.core.errors import GridError, InvalidInput
from gridhand.core.jobviews import request_row
from gridhand.core.requests import Request
from gridhand.core.resources import Resources
from gridhand.library.asking import RemoteCall
from gridhand.library.backend import Backend, read_count, read_flag, read_op_id, read_ttl
from gridhand.library.remote import Remote

Facts = dict[str, Any]

_CPU = frozenset({"cpu", "cpu_cores", "num_cpus"})
_WISHES = frozenset(Request.of.__kwdefaults__ or ())
_PLAIN = ("name", "priority", "task_type", "stdin", "stdout", "stderr")


def with_jobs(backend: Backend) -> Remote:
    """The backend, if it is one that runs jobs."""
    if isinstance(backend, Remote):
        return backend
    raise GridError(
        "jobs need a controller, and this grid keeps its ledger in its own process",
        hint="Use Grid(), which talks to this machine's controller.",
    )


class Submitting(RemoteCall[list[Facts]]):
    """Jobs to be queued. Unless they are detached they end with the session of the grid."""

    __slots__ = ("op_id", "owner", "submission")

    def __init__(self, owner: str, op_id: str | None, submission: Facts) -> None:
        self.owner = owner
        self.op_id = read_op_id(op_id) or new_op_id()
        self.submission = submission

    def run(self, remote: Remote) -> list[Facts]:
        ask = routes.submit(self.submission, self.op_id)
        if self.submission["detached"]:
            return cast("list[Facts]", remote.ask(self.owner, ask))
        session = remote.session(self.owner)
        session.ready()  # before there is a job that nobody would wait for
        made = cast("list[Facts]", remote.ask(self.owner, ask))
        session.attach([job["id"] for job in made])
        return made

    def undo(self, remote: Remote, reply: list[Facts]) -> None:
        """What would have ended with the caller ends now."""
        if not self.submission["detached"]:
            for job in reply:
                remote.ask(self.owner, routes.cancel(job["id"]))


def read_command(command: Sequence[str] | str) -> list[str]:
    """Words; one text is split as a shell would, and nothing more."""
    if isinstance(command, str):
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise InvalidInput("command", command, f"quotes that match ({error})") from error
    elif isinstance(command, Sequence):
        words = [os.fspath(word) if isinstance(word, os.PathLike) else word for word in command]
    else:
        raise InvalidInput("command", command, "a program and its arguments")
    if not words or not all(isinstance(word, str) for word in words):
        raise InvalidInput("command", command, "a program and its arguments, as texts")
    return words


def read_work(resources: Any, named: Mapping[str, Any]) -> Request:
    """What a command needs: one core unless it says otherwise."""
    if isinstance(resources, Request):
        return Request.of(resources, **named)
    if resources is not None and not isinstance(resources, str | Mapping | Resources):
        raise InvalidInput("resources", resources, 'amounts, such as "cpu=2" or {"cpu": 2}')
    given = Resources.of(resources) if isinstance(resources, str) else resources or ()
    if _CPU.isdisjoint(given) and _CPU.isdisjoint(named):
        return Request.of(resources, **{**named, "cpu": 1})
    return Request.of(resources, **named)


def read_call(resources: Any, named: Mapping[str, Any]) -> Request:
    """What a function needs: as for a command, but it may be nothing, said with `cpu=0`."""
    if isinstance(resources, str):
        said = {word.partition("=")[0] for word in resources.split()}
    else:
        said = set(resources) if isinstance(resources, Mapping | Resources) else set()
    said.update(named)
    nothing = not _CPU.isdisjoint(said) and _WISHES.isdisjoint(said)
    if nothing and not Resources.of(resources, **named):
        return Request(Resources())
    return read_work(resources, named)


def submission(
    command: Sequence[str] | str,
    resources: Any,
    named: Mapping[str, Any],
    *,
    local: bool,
    array: str | None = None,
    **given: Any,
) -> Facts:
    """The body of a submission. `local` when the controller is on this machine."""
    found: Facts = {
        "command": read_command(command),
        "folder": os.path.abspath(given["cwd"] or os.getcwd()),
        "environment": _environment(given["env"], local),
        "detached": read_flag(given["detach"], "detach"),
        "retries": read_count(given["retries"], "retries", 0, 999),
        "after": _after(given["after"]),
    }
    if given.get("within") is not None:
        found["within"] = _within(given["within"], resources, named)
    else:
        found["request_row"] = request_row(read_work(resources, named))
    found |= {name: given[name] for name in _PLAIN if given[name] is not None}
    if array is not None:
        found["array"] = array
    if (limit_ms := read_ttl(given["time_limit"], "time_limit")) is not None:
        found["time_limit_s"] = limit_ms / 1000
    if given["retry_on"] is not None:
        found["retry_on"] = [str(one) for one in given["retry_on"]]
    return found


def _within(held: Any, resources: Any, named: Mapping[str, Any]) -> str:
    """The id of what a command is to run in; it has what that has."""
    if resources is not None or named:
        raise InvalidInput("resources", resources or dict(named), "nothing beside `within`")
    id = held if isinstance(held, str) else getattr(held, "id", None)
    if not isinstance(id, str) or not id:
        raise InvalidInput("within", held, "an allocation or its id")
    return id


def _environment(env: Mapping[str, str] | None, local: bool) -> dict[str, str]:
    """The caller's variables with those given; over a network, those given alone."""
    if env is not None and not isinstance(env, Mapping):
        raise InvalidInput("env", env, "a mapping of names to texts")
    found = {**os.environ, **(env or {})} if local else dict(env or {})
    for name, text in found.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidInput("env", name, "names and values that are texts")
    return found


def _after(given: Any) -> list[Facts]:
    """Ids or jobs, each alone or with a condition."""
    several = given if isinstance(given, list | tuple) else [given]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str):
        several = [given] if given[1].startswith("after") else several
    return [_condition(one) for one in several]


def _condition(one: Any) -> Facts:
    job, condition = one if isinstance(one, tuple) and len(one) == 2 else (one, "afterok")
    return {"id": job_id(job), "condition": str(condition)}


def job_id(job: Any) -> str:
    id = str(job) if type(job) is int else job
    id = id if isinstance(id, str) else getattr(job, "id", None)
    if not isinstance(id, str) or not id:
        raise InvalidInput("job", job, "a job or its id")
    return id
