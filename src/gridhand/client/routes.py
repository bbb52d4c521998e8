"""The routes of the API, each as a function that returns the HTTP request to send.

A request that changes something carries an op id made here, so that sending it again after a lost
reply has no second effect.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

PREFIX = "/api/v1"

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~")


class HttpCall(NamedTuple):
    """One HTTP request. The answer is the member `pick` of the reply, or all of it."""

    method: str
    target: str
    body: bytes | None = None
    op_id: str | None = None
    pick: str | None = None
    stays: bool = False  # the client stays with a job until it ends
    accept: str = "application/json"
    raw: bool = False  # the body is bytes of a file

    @property
    def repeatable(self) -> bool:
        """Whether sending it twice has the effect of sending it once."""
        return self.method in ("GET", "PUT") or self.op_id is not None

    @property
    def headers(self) -> dict[str, str]:
        headers = {"accept": self.accept}
        if self.body is not None:
            headers["content-type"] = "application/octet-stream" if self.raw else "application/json"
        if self.op_id is not None:
            headers["idempotency-key"] = self.op_id
        return headers


def new_op_id() -> str:
    return os.urandom(16).hex()


def version() -> HttpCall:
    return _get("/version")


def submit(submission: Mapping[str, Any], op_id: str | None = None) -> HttpCall:
    return _change("POST", "/jobs", submission, op_id, "jobs")


def plan(submission: Mapping[str, Any]) -> HttpCall:
    """Change nothing; the op id only marks the request as repeatable."""
    return _change("POST", "/jobs/plan", submission, None)


def jobs(
    states: Iterable[str] = (),
    owner: str | None = None,
    array: str | None = None,
    limit: int | None = None,
    before: str | None = None,
    fold: bool = False,
    since: float | None = None,
) -> HttpCall:
    wanted = [("state", state) for state in states]
    others = {"owner": owner, "array": array, "limit": limit, "before": before}
    folded = {"fold": 1 if fold else None, "since": since}
    return _get("/jobs", [*wanted, *others.items(), *folded.items()], "jobs")


def job(id: str) -> HttpCall:
    return _get(f"/jobs/{quoted(id)}")


def cancel(id: str, op_id: str | None = None) -> HttpCall:
    return _change("POST", f"/jobs/{quoted(id)}/cancel", {}, op_id, "jobs")


def hold(id: str, op_id: str | None = None) -> HttpCall:
    return _change("POST", f"/jobs/{quoted(id)}/hold", {}, op_id, "jobs")


def unhold(id: str, op_id: str | None = None) -> HttpCall:
    return _change("POST", f"/jobs/{quoted(id)}/unhold", {}, op_id, "jobs")


def signal(id: str, number: int, op_id: str | None = None) -> HttpCall:
    return _change("POST", f"/jobs/{quoted(id)}/signal", {"signal": int(number)}, op_id, "sent")


def why(id: str) -> HttpCall:
    return _get(f"/jobs/{quoted(id)}/why")


def predict(task_type: str) -> HttpCall:
    return _get(f"/predict/{quoted(task_type)}")


def history(filters: Mapping[str, Any]) -> HttpCall:
    return _get("/history", list(filters.items()))


def queue(limit: int | None = None, owner: str | None = None) -> HttpCall:
    return _get("/queue", [("limit", limit), ("owner", owner)])


def calls(
    states: Iterable[str] = (),
    name: str | None = None,
    run: str | None = None,
    owner: str | None = None,
    limit: int | None = None,
) -> HttpCall:
    wanted = [("state", state) for state in states]
    others = {"name": name, "run": run, "owner": owner, "limit": limit}
    return _get("/calls", [*wanted, *others.items()], "calls")


def call(id: str) -> HttpCall:
    return _get(f"/calls/{quoted(id)}")


def report_calls(report: Mapping[str, Any]) -> HttpCall:
    """Report calls. Repeating a report does no harm: ended calls stay as they are."""
    return _change("POST", "/calls", report, None, "written")


def report_wait(report: Mapping[str, Any]) -> HttpCall:
    """Say what the function in a slot waits for; the reply names the jobs that never start."""
    return _change("POST", "/calls/waiting", report, None, "refused")


def logs(
    id: str,
    stream: str,
    offset: int | None = None,
    limit: int | None = None,
    tail: int | None = None,
) -> HttpCall:
    wanted = {"stream": stream, "offset": offset, "limit": limit, "tail": tail}
    return _get(f"/jobs/{quoted(id)}/logs", wanted.items())


def follow(id: str, *, attach: bool, output: bool, offsets: Mapping[str, int]) -> HttpCall:
    wanted = {"attach": int(attach), "output": int(output), **offsets}
    return _get(f"/jobs/{quoted(id)}/follow", wanted.items())._replace(stays=True)


def status(*, live: bool = False) -> HttpCall:
    return _get("/status?live=true" if live else "/status")


def nodes() -> HttpCall:
    return _get("/nodes", pick="nodes")


def node(name: str) -> HttpCall:
    return _get(f"/nodes/{quoted(name)}")


def register(nodes: Sequence[Mapping[str, Any]], op_id: str | None = None) -> HttpCall:
    return _change("POST", "/nodes", {"nodes": list(nodes)}, op_id, "nodes")


def drain(name: str, op_id: str | None = None) -> HttpCall:
    return _change("POST", f"/nodes/{quoted(name)}/drain", {}, op_id)


def resume(name: str, op_id: str | None = None) -> HttpCall:
    return _change("POST", f"/nodes/{quoted(name)}/resume", {}, op_id)


def remove(name: str, force: bool = False, op_id: str | None = None) -> HttpCall:
    target = f"/nodes/{quoted(name)}{_query([('force', int(force))])}"
    return _change("DELETE", target, None, op_id)


def set_health(name: str, health: str, why: str = "", op_id: str | None = None) -> HttpCall:
    body = {"health": health, "why": why}
    return _change("POST", f"/nodes/{quoted(name)}/health", body, op_id)


def set_foreign(name: str, used: Mapping[str, int]) -> HttpCall:
    return _change("POST", f"/nodes/{quoted(name)}/foreign", {"used": dict(used)}, None)


def allocations() -> HttpCall:
    return _get("/allocations", pick="allocations")


def allocate(order: Mapping[str, Any], op_id: str | None = None) -> HttpCall:
    return _change("POST", "/allocations", order, op_id)


def allocate_group(order: Mapping[str, Any], op_id: str | None = None) -> HttpCall:
    return _change("POST", "/allocations/group", order, op_id, "allocations")


def move(id: str, move: str, ttl_s: float | None = None, op_id: str | None = None) -> HttpCall:
    body = {} if ttl_s is None else {"ttl_s": ttl_s}
    return _change("POST", f"/allocations/{quoted(id)}/{quoted(move)}", body, op_id)


def fits(asked: Mapping[str, Any]) -> HttpCall:
    return _change("POST", "/fits", asked, None, "fits")


def explain(request: Mapping[str, Any]) -> HttpCall:
    """Change nothing; the op id only marks the request as repeatable."""
    return _change("POST", "/explain", request, None)


def events(after: int = 0, limit: int | None = None) -> HttpCall:
    return _get("/events", [("after", after), ("limit", limit)], "events")


def event_page(
    kinds: Sequence[str], owners: Sequence[str], after: int | None, limit: int, last: int | None
) -> HttpCall:
    bounds = [("after", after), ("limit", limit), ("last", last)]
    return _get("/events", [*_event_filter(kinds, owners), *bounds])


def follow_events(kinds: Sequence[str], owners: Sequence[str], after: int | None) -> HttpCall:
    wanted = [*_event_filter(kinds, owners), ("after", after)]
    return _get("/events", wanted)._replace(stays=True, accept="text/event-stream")


def _event_filter(kinds: Sequence[str], owners: Sequence[str]) -> list[tuple[str, object]]:
    return [*(("kind", kind) for kind in kinds), *(("owner", owner) for owner in owners)]


def check() -> HttpCall:
    return _get("/check")


def stop(jobs: str = "refuse", op_id: str | None = None) -> HttpCall:
    return _change("POST", "/stop", {"jobs": jobs}, op_id)


def config() -> HttpCall:
    return _get("/config")


def reload_config() -> HttpCall:
    return _change("POST", "/config/reload", None, None)


def repair() -> HttpCall:
    return _change("POST", "/repair", None, None, "repaired")


def identity() -> HttpCall:
    return _get("/identity", pick="identity")


def dump() -> HttpCall:
    return _get("/dump")


def prune(older_than_s: float, most: int) -> HttpCall:
    body = {"older_than_s": older_than_s, "most": most}
    return _change("POST", "/prune", body, None, "left")


def upload(id: str, name: str, offset: int, data: bytes, *, executable: bool) -> HttpCall:
    """Write a part of a file. Repeating it does no harm."""
    wanted = _query([("offset", offset), ("executable", int(executable))])
    return HttpCall("PUT", f"{PREFIX}/uploads/{id}/{_quoted_path(name)}{wanted}", data, raw=True)


def files(job: str) -> HttpCall:
    return _get(f"/jobs/{quoted(job)}/files", pick="files")


def download(job: str, name: str, offset: int) -> HttpCall:
    return _get(f"/jobs/{quoted(job)}/files/{_quoted_path(name)}", [("offset", offset)])


def tokens() -> HttpCall:
    return _get("/tokens", pick="tokens")


def create_token(wanted: Mapping[str, Any]) -> HttpCall:
    return _change("POST", "/tokens", wanted, None)


def rotate_token(id: str) -> HttpCall:
    return _change("POST", f"/tokens/{quoted(id)}/rotate", {}, None)


def revoke_token(id: str) -> HttpCall:
    return _change("DELETE", f"/tokens/{quoted(id)}", None, None)


def session(order: Mapping[str, Any]) -> HttpCall:
    """Open a session. It is not repeatable: each connection is a session of its own."""
    return HttpCall("POST", f"{PREFIX}/sessions", _content(order))


def end_session(id: str) -> HttpCall:
    return _change("DELETE", f"/sessions/{quoted(id)}", None, None)


def attach(session: str, jobs: Sequence[str]) -> HttpCall:
    return _change("POST", f"/sessions/{quoted(session)}/jobs", {"jobs": list(jobs)}, None, "jobs")


def quoted(text: str) -> str:
    """Return the text encoded as one segment of a path, or as a value of a query."""
    if text in (".", ".."):  # servers resolve these as folders
        return text.replace(".", "%2E")
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in os.fsencode(text))


def _quoted_path(name: str) -> str:
    return "/".join(quoted(step) for step in name.split("/"))


def _query(wanted: Iterable[tuple[str, object]]) -> str:
    given = [f"{name}={quoted(str(value))}" for name, value in wanted if value is not None]
    return f"?{'&'.join(given)}" if given else ""


def _get(path: str, wanted: Iterable[tuple[str, object]] = (), pick: str | None = None) -> HttpCall:
    return HttpCall("GET", f"{PREFIX}{path}{_query(wanted)}", pick=pick)


def _change(
    method: str, path: str, body: object, op_id: str | None, pick: str | None = None
) -> HttpCall:
    content = None if body is None else _content(body)
    return HttpCall(method, f"{PREFIX}{path}", content, op_id or new_op_id(), pick)


def _content(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
