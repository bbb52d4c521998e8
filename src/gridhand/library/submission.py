"""Turn a command and its options, as people write them, into a submission for a controller."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, cast

from gridhand.client import routes
from gridhand.client.moments import read_warning, seconds_until
from gridhand.client.routes import new_op_id
from gridhand.core.errors import GridError, InvalidInput
from gridhand.core.jobs.spec import MOST_NODES
from gridhand.core.model.requests import Request
from gridhand.core.model.resources import Resources
from gridhand.core.rows.requests import request_row
from gridhand.library.backend import Backend, read_count, read_flag, read_op_id, read_ttl
from gridhand.library.remote import Remote
from gridhand.library.remote_operations import RemoteOperation
from gridhand.posix.caller_settings import VARIABLE, own_settings

Facts = dict[str, Any]

_CPU = frozenset({"cpu", "cpu_cores", "num_cpus"})
_PLACEMENT = frozenset(Request.of.__kwdefaults__ or ())
# Any name may be a resource of a site's own, but these have been typed in vain too often.
_MISTAKEN = {
    "mem": "memory", "ram": "memory", "mem_gb": "memory_gb", "cpus": "cpu", "cores": "cpu",
    "num_cores": "cpu", "ncpus": "cpu", "gpus": "gpu", "ngpus": "gpu", "vram": "gpu_memory",
    "nodes": "node", "nodelist": "node", "label": "labels", "constraint": "labels",
}  # fmt: skip
_PLAIN = ("name", "priority", "task_type", "queue", "stdin", "stdout", "stderr")


def with_jobs(backend: Backend) -> Remote:
    """Return the backend if it runs jobs; else raise `GridError`."""
    if isinstance(backend, Remote):
        return backend
    raise GridError(
        "jobs need a controller, but this grid keeps its ledger in this process",
        hint="Use Grid(), which talks to this machine's controller.",
    )


class RemoteSubmit(RemoteOperation[list[Facts]]):
    """An operation that queues jobs. Unless detached, they end with the grid's session."""

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
        session.ready()  # first: a job without a session would be left behind
        made = cast("list[Facts]", remote.ask(self.owner, ask))
        session.attach([job["id"] for job in made])
        return made

    def undo(self, remote: Remote, reply: list[Facts]) -> None:
        """Cancel the jobs, since the caller is gone; detached ones stay."""
        if not self.submission["detached"]:
            for job in reply:
                remote.ask(self.owner, routes.cancel(job["id"]))


def read_command(command: Sequence[str] | str) -> list[str]:
    """Return the program and its arguments; a string is split as a shell would split it."""
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
    """Read the request of a command: one core unless it says otherwise."""
    if isinstance(resources, Request):
        return Request.of(resources, **named)
    if resources is not None and not isinstance(resources, str | Mapping | Resources):
        raise InvalidInput("resources", resources, 'amounts, such as "cpu=2" or {"cpu": 2}')
    if not _names_cpu(resources, named):
        return Request.of(resources, **{**named, "cpu": 1})
    return Request.of(resources, **named)


def _names_cpu(resources: Any, named: Mapping[str, Any]) -> bool:
    given = Resources.of(resources) if isinstance(resources, str) else resources or ()
    return not (_CPU.isdisjoint(given) and _CPU.isdisjoint(named))


def check_spelling(given: Mapping[str, Any]) -> None:
    """Raise if a keyword of a function or command is what another system calls one of ours."""
    for name, value in given.items():
        if (meant := _MISTAKEN.get(name)) is not None:
            raise InvalidInput(name, value, f"{meant}=, if you mean that")


def read_call(resources: Any, named: Mapping[str, Any]) -> Request:
    """Read the request of a function: as for a command, but `cpu=0` alone asks for nothing."""
    check_spelling(named)
    check_spelling(resources if isinstance(resources, Mapping) else {})
    if isinstance(resources, str):
        names = {word.partition("=")[0] for word in resources.split()}
    else:
        names = set(resources) if isinstance(resources, Mapping | Resources) else set()
    names.update(named)
    nothing = not _CPU.isdisjoint(names) and _PLACEMENT.isdisjoint(names)
    if nothing and not Resources.of(resources, **named):
        return Request(Resources())
    return read_work(resources, named)


def _folder(given: str | os.PathLike[str] | None) -> str:
    try:
        return os.path.abspath(given or os.getcwd())
    except FileNotFoundError:
        allowed = "an absolute path, or change to another folder: the current one no longer exists"
        raise InvalidInput("cwd", given, allowed) from None


def submission(
    command: Sequence[str] | str,
    resources: Any,
    named: Mapping[str, Any],
    *,
    local: bool,
    array: str | None = None,
    **given: Any,
) -> Facts:
    """Return the body of a submission. `local` says that the controller is on this machine."""
    if "nodes" in named:
        raise InvalidInput("nodes", named["nodes"], "`run_gang`, for a command on several nodes")
    body: Facts = {
        "command": read_command(command),
        "environment": _environment(given["env"], local),
        "detached": read_flag(given["detach"], "detach"),
        "retries": read_count(given["retries"], "retries", 0, 999),
        "after": _after(given["after"]),
    }
    if local:
        body["folder"] = _folder(given["cwd"])
        if read_flag(given.get("anywhere", False), "anywhere"):
            body["anywhere"] = True
    else:
        _refuse_paths(given)
    if given.get("within") is not None:
        body["within"] = _within(given["within"], resources, named)
    else:
        body["request_row"] = request_row(read_work(resources, named))
        if not isinstance(resources, Request) and not _names_cpu(resources, named):
            body["default_cpu"] = True
    body |= {name: given[name] for name in _PLAIN if given.get(name) is not None}
    body |= _planned(given)
    if array is not None:
        body["array"] = array
    if given.get("nodes") is not None:
        body["nodes"] = read_count(given["nodes"], "nodes", 1, MOST_NODES)
    if (limit_ms := _time_limit_ms(given["timeout"], given.get("time_limit"))) is not None:
        body["time_limit_s"] = limit_ms / 1000
    if given["retry_on"] is not None:
        body["retry_on"] = [str(cause) for cause in given["retry_on"]]
    return body


def _planned(given: Mapping[str, Any]) -> Facts:
    """Return when it may run, for how long it should, and the signal before its time limit."""
    found: Facts = {}
    for name in ("expect", "fallback_after"):
        if (ms := read_ttl(given.get(name), name)) is not None:
            found[f"{name}_s"] = ms / 1000
    for name in ("begin", "deadline"):
        if (moment := given.get(name)) is not None:
            found[f"{name}_s"] = seconds_until(moment, name)
    if (signal := given.get("signal")) is not None:
        found["warn_signal"], found["warn_s"] = read_warning(signal, "signal")
    return found


def _refuse_paths(given: Mapping[str, Any]) -> None:
    """Raise InvalidInput for paths: a controller on another machine does not know ours."""
    for name in ("cwd", "stdin", "stdout", "stderr"):
        if given[name] is not None:
            allowed = "nothing: on another machine a job runs in a folder of its own"
            raise InvalidInput(name, given[name], allowed)


def _time_limit_ms(timeout: Any, time_limit: Any) -> int | None:
    """Read the time limit of a job, which has an earlier name."""
    if timeout is not None and time_limit is not None:
        raise InvalidInput("time_limit", time_limit, "`timeout` alone; that is its earlier name")
    if time_limit is not None:
        return read_ttl(time_limit, "time_limit")
    return read_ttl(timeout, "timeout")


def _within(allocation: Any, resources: Any, named: Mapping[str, Any]) -> str:
    """Return the id of the allocation to run in, which excludes resources of its own."""
    if resources is not None or named:
        raise InvalidInput("resources", resources or dict(named), "nothing beside `within`")
    id = allocation if isinstance(allocation, str) else getattr(allocation, "id", None)
    if not isinstance(id, str) or not id:
        raise InvalidInput("within", allocation, "an allocation or its id")
    return id


def _environment(env: Mapping[str, str] | None, local: bool) -> dict[str, str]:
    """Return this process's variables and those given; over a network, only those given."""
    if env is not None and not isinstance(env, Mapping):
        raise InvalidInput("env", env, "a mapping of names to texts")
    own = {**os.environ, VARIABLE: own_settings()} if local else {}
    variables = {**own, **(env or {})}
    for name, text in variables.items():
        if not isinstance(name, str) or not isinstance(text, str):
            raise InvalidInput("env", name, "names and values that are texts")
    return variables


def _after(given: Any) -> list[Facts]:
    """Read dependencies: a job or an id, a pair with a condition, or a list of these."""
    several = given if isinstance(given, list | tuple) else [given]
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str):
        several = [given] if given[1].startswith("after") else several
    return [_dependency(item) for item in several]


def _dependency(given: Any) -> Facts:
    pair = isinstance(given, tuple) and len(given) == 2
    job, condition = given if pair else (given, "afterok")
    return {"id": job_id(job), "condition": str(condition)}


def job_id(job: Any) -> str:
    """Return the id of a job, given itself or its id."""
    id = str(job) if type(job) is int else job
    id = id if isinstance(id, str) else getattr(job, "id", None)
    if not isinstance(id, str) or not id:
        raise InvalidInput("job", job, "a job or its id")
    return id
