"""The routes of jobs: submit, list, cancel, signal, read logs, follow."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import Field

from gridhand.api.auth import acts_as, may_see, only_owner, owner_of
from gridhand.api.follow_job import Follower, FollowRequest
from gridhand.api.http import BYTES, api_router, listed
from gridhand.api.job_finder import JobFinder
from gridhand.api.job_place import check_place, make_place
from gridhand.api.json_views import hide_private, job_json
from gridhand.api.queue_views import place_json, stops_json
from gridhand.api.routes.ledger import without_other_holders
from gridhand.api.schemas.jobs import Submission, check_environment
from gridhand.api.schemas.ledger import OpId, Strict, op_id_of
from gridhand.api.urgent_access import check_urgent
from gridhand.controller.controller import Controller
from gridhand.controller.jobs.dry_run import planned
from gridhand.controller.jobs.job_reader import JobFilter
from gridhand.controller.jobs.submission_warnings import (
    warn_of_nodes,
    warn_of_retries,
    warn_of_users,
)
from gridhand.controller.keeper.job_commands import ADMIN
from gridhand.controller.keeper.ledger_commands import Context
from gridhand.controller.keeper.questions import Read
from gridhand.core.errors import GridError, InvalidInput
from gridhand.core.jobs.job import JobPhase, JobSpec, JobState
from gridhand.core.model.names import NodeName
from gridhand.core.operations import Explain, SetHeld
from gridhand.core.queue.job_view import JobView

MOST_LISTED = 10_000
MOST_RETURNED = 1000  # of the tasks of an array that was submitted
_LOG_CHUNK = 4 << 20
_OPEN = (JobState.QUEUED, JobState.RUNNING)

Offset = Annotated[int, Query(ge=0, le=2**62)]


class SignalBody(Strict):
    signal: int = Field(ge=1, le=64)


def job_routes(controller: Controller) -> APIRouter:
    """Return the routes of jobs. Each translates, runs one operation, and translates back."""
    router, finder = api_router("/jobs", "jobs"), JobFinder(controller)

    def shown(view: JobView, request: Request, gpus: list[str] | None = None) -> dict[str, Any]:
        usage = controller.samples.of_job(view.job)
        told = job_json(view, controller.home, usage=usage, gpus=gpus)
        return told if may_see(request, view.job.work.owner) else hide_private(told)

    def may_be_urgent(work: JobSpec, request: Request) -> None:
        shared = controller.users.shared
        check_urgent(request, work.priority, controller.settings, shared=shared, queue=work.queue)

    async def warnings(work: JobSpec, body: Submission) -> list[str]:
        """Return what may not be as the user expects, though the job was accepted."""
        named = work.request.prefer or work.request.exclude
        known = await controller.ask(Read(list_nodes)) if named else ()
        return [
            *warn_of_users(controller.neighbours.of_other_users()),
            *(warn_of_nodes(work, known) if named else ()),
            *warn_of_retries(work, body.retry_on or ()),
        ]

    @router.post("", status_code=201)
    async def submit(body: Submission, request: Request, op_id: OpId = None) -> dict[str, Any]:
        # Everything is checked before the environment is stored.
        check_environment(body.environment)
        check_place(body, request)
        work, op_id = body.work(owner_of(request), ""), op_id_of(op_id)
        may_be_urgent(work, request)
        (indices, _), after = body.indices(), body.dependencies()
        await finder.check_dependencies(after, request)
        place = await make_place(body, request, op_id, controller.folders)
        kept = await controller.keep(place.environment)
        work = replace(work, folder=place.folder, environment=kept)
        left_open = body.left_open()
        made = await controller.submit(
            op_id, work, indices=indices, after=after, left_open=left_open
        )
        views = made.views or await controller.find_surely(made.ids[:MOST_RETURNED])
        return {
            "jobs": [shown(view, request) for view in views[:MOST_RETURNED]],
            "count": len(made.ids),
            "warnings": await warnings(work, body),
        }

    @router.get("")
    async def list_jobs(
        request: Request,
        state: Annotated[list[str] | None, Query(max_length=20)] = None,
        owner: Annotated[str | None, Query(max_length=200)] = None,
        array: Annotated[str | None, Query(max_length=40)] = None,
        before: Annotated[str | None, Query(max_length=40)] = None,
        limit: Annotated[int, Query(ge=1, le=MOST_LISTED)] = 100,
        fold: bool = False,
        since: Annotated[float | None, Query(ge=0, le=2**40)] = None,
    ) -> Response:
        """List jobs, newest first.

        With `fold`, tasks of an array in the same state for the same reason are one entry, that of
        the first of them, and `tasks` says how many there are; jobs that ended before `since`, in
        seconds since 1970, are left out.
        """
        number = None
        if before is not None:
            controller.home.job(before)  # raises if it is not an id
            number = (await finder.find(before, request)).job.number
        if (only := only_owner(request)) is not None and owner not in (None, only):
            return listed(request, {"jobs": []})
        wanted = JobFilter(_states(state or []), only or owner, array, number, limit)
        if fold:
            since_ms = None if since is None else round(since * 1000)
            lines = await controller.lines(wanted, since_ms)
            told = [{**shown(line.view, request), "tasks": line.summary()} for line in lines]
        else:
            told = [shown(view, request) for view in await controller.jobs(wanted)]
        return listed(request, {"jobs": told})

    @router.get("/{id}")
    async def job(id: str, request: Request) -> dict[str, Any]:
        view = await finder.find(id, request)
        return shown(view, request, await controller.devices(view.job))

    @router.post("/{id}/cancel")
    async def cancel(id: str, request: Request, op_id: OpId = None) -> dict[str, Any]:
        named = await finder.resolve(id, request)
        admin, was_open = acts_as(request) == ADMIN, await controller.is_open(named)
        ids = await controller.cancel(owner_of(request), [named], op_id_of(op_id), any_owner=admin)
        views = await controller.find_surely(ids[:MOST_RETURNED])
        stopping = await controller.count_open(ids)
        told = [shown(view, request) for view in views]
        return {"jobs": told, "count": len(ids), "stopping": stopping, "was_open": was_open}

    async def set_held(id: str, request: Request, op_id: str | None, held: bool) -> dict[str, Any]:
        named, owner = [await finder.resolve(id, request)], owner_of(request)
        admin = acts_as(request) == ADMIN
        ids = await controller.ask(SetHeld(owner, op_id_of(op_id), tuple(named), held, admin))
        views = await controller.find_surely(ids[:MOST_RETURNED])
        return {"jobs": [shown(view, request) for view in views], "count": len(ids)}

    @router.post("/{id}/hold")
    async def hold(id: str, request: Request, op_id: OpId = None) -> dict[str, Any]:
        """Keep a queued job, or the queued tasks of an array, from starting.

        Return those that this changed.
        """
        return await set_held(id, request, op_id, held=True)

    @router.post("/{id}/unhold")
    async def unhold(id: str, request: Request, op_id: OpId = None) -> dict[str, Any]:
        """Let a held job, or the held tasks of an array, start. Return those that this changed."""
        return await set_held(id, request, op_id, held=False)

    @router.post("/{id}/signal")
    async def signal(
        id: str, body: SignalBody, request: Request, op_id: OpId = None
    ) -> dict[str, bool]:
        job, owner = (await finder.find(id, request)).job.id, owner_of(request)
        admin = acts_as(request) == ADMIN
        sent = await controller.signal(owner, job, body.signal, op_id_of(op_id), any_owner=admin)
        return {"sent": sent}

    @router.get("/{id}/why")
    async def why(id: str, request: Request) -> dict[str, Any]:
        view = await finder.find(id, request)
        explained: str | None = None
        holders: list[dict[str, Any]] = []
        if view.phase is JobPhase.QUEUED and view.held is None:  # it waits only for room
            owner, asked = view.job.work.owner, view.job.request
            try:
                found = await controller.ask(Explain(owner, asked))
                found = without_other_holders(found, only_owner(request))
                explained = None if found.fits else str(found)
                holders = [one.to_dict() for one in found.holders]
            except GridError as error:  # the job it is to be placed near is not there now
                explained = f"{error}. {error.hint}"
        place = await controller.place(view.job) if view.job.attempt is None else None
        told = place and place_json(place, controller.now(), only_owner(request))
        more = {"explanation": explained, "holders": holders, "queue": told}
        return {**shown(view, request), **more}

    @router.post("/plan")
    async def plan(body: Submission, request: Request) -> dict[str, Any]:
        """Return where the job would be placed if it were submitted now. Nothing is changed."""
        check_place(body, request)
        work, after = body.work(owner_of(request), ""), body.dependencies()
        may_be_urgent(work, request)
        count = max(1, len(body.indices()[0]))
        left_open = body.left_open()
        plan = await planned(controller, work, after, count=count, left_open=left_open)
        return {**plan, "stops": stops_json(plan["stops"], only_owner(request))}

    @router.get("/{id}/logs", response_class=Response, responses=BYTES)
    async def logs(
        id: str,
        request: Request,
        stream: str = "stdout",
        offset: Offset = 0,
        limit: Annotated[int, Query(ge=1, le=_LOG_CHUNK)] = _LOG_CHUNK,
        tail: Annotated[int | None, Query(ge=0, le=_LOG_CHUNK)] = None,
    ) -> Response:
        if stream not in ("stdout", "stderr"):
            raise InvalidInput("stream", stream, "stdout or stderr")
        view = await finder.find_own(id, request)
        size = await controller.logs.size(view.job, stream)
        if tail is not None:
            offset = max(0, size - tail)
        pieces = await controller.logs.read(view.job, stream, offset, limit)
        text, end = join_log(pieces, offset)
        facts = {"Size": size, "Offset": offset, "End": end}
        headers = {f"X-Gridhand-{name}": str(value) for name, value in facts.items()}
        return Response(text, media_type="application/octet-stream", headers=headers)

    @router.get("/{id}/follow")
    async def follow(
        id: str,
        request: Request,
        attach: bool = False,
        output: bool = True,
        stdout: Offset = 0,
        stderr: Offset = 0,
    ) -> StreamingResponse:
        changes = controller.feed.count
        view = await (finder.find_own if attach or output else finder.find)(id, request)
        whole = may_see(request, view.job.work.owner)
        wanted = FollowRequest(view.job.id, attach, output, stdout, stderr, whole)
        frames = Follower(controller, wanted, view, changes).frames()
        return StreamingResponse(frames, media_type="application/x-gridhand-frames")

    return router


def list_nodes(context: Context) -> list[NodeName]:
    return list(context.ledger.names)


def join_log(pieces: list[tuple[int, bytes | int]], offset: int) -> tuple[bytes, int]:
    """Return the pieces of a log as one text, with a line for each cut, and the end offset."""
    text = bytearray()
    for at, piece in pieces:
        if isinstance(piece, int):
            text += b"\n[%d bytes were cut out here]\n" % piece
            offset = at + piece
        else:
            text += piece
            offset = at + len(piece)
    return bytes(text), offset


def _states(words: list[str]) -> tuple[JobState, ...]:
    states: list[JobState] = []
    for word in words:
        if word == "open":
            states += _OPEN
        elif word in list(JobState):
            states.append(JobState(word))
        else:
            raise InvalidInput("state", word, f"open, or one of {', '.join(JobState)}")
    return tuple(dict.fromkeys(states))
