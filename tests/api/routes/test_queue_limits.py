"""Named queues and quotas over HTTP: the status, the code and the numbers of each refusal."""

import asyncio
import os

import pytest

from api_server import JOB, PATIENCE_S
from gridhand.api import auth
from gridhand.core.jobs.job import Priority
from gridhand.core.observations import UseQueues
from gridhand.core.queue.named_queues import NamedQueues, QueueRules, Quota

ME = auth.user_name(os.geteuid())


def use(server, quotas=None, **rules):
    named = {name: QueueRules(name, **given) for name, given in rules.items()}
    queues = NamedQueues(named, quotas or {})

    async def told():
        await server.controller.ask(UseQueues(queues))

    asyncio.run_coroutine_threadsafe(told(), server.loop).result(PATIENCE_S)


#    what it shows                   job                                                     status  code                 members
REFUSALS = {
    "an unknown queue":             ({"queue": "shrot"},                                      422,    "unknown_queue",     {"field": "queue", "nearest": "short"}),
    "a queue of others":            ({"queue": "theirs"},                                     403,    "queue_not_allowed", {"queue": "theirs", "owner": ME}),
    "more than a queue allows":     ({"queue": "short", "request": {"cpu": 2}},               422,    "over_limit",        {"field": "cpu", "value": "2", "allowed": "at most 1"}),
    "a higher priority":            ({"queue": "short", "priority": "urgent"},                422,    "over_limit",        {"field": "priority", "allowed": "at most low"}),
    "more than a queue holds":      ({"queue": "short", "array": "1-4"},                      429,    "queue_full",        {"queue": "short", "used": 0, "asked": 4, "most": 3}),
}  # fmt: skip


@pytest.mark.parametrize(("job", "status", "code", "members"), REFUSALS.values(), ids=REFUSALS)
@pytest.mark.parametrize("route", ["/jobs", "/jobs/plan"])
def test_refusals(api, server, route, job, status, code, members):
    short = {"limits": {"cpu": 10_000}, "max_length": 3, "priority": Priority.LOW}
    use(server, short=short, theirs={"owners": frozenset({"nobody-here"})})
    told, answer = api("POST", route, {**JOB, **job})
    assert (told, answer["code"]) == (status, code)
    assert answer.items() >= members.items()
    assert answer["hint"]
    assert api.ok("GET", "/jobs")["jobs"] == []


def test_a_flood_of_one_owner_is_refused_and_others_are_served(api, server):
    use(server, {"*": Quota(max_queued_jobs=20)})
    answers = [api("POST", "/jobs", {**JOB, "array": "1-6"})[0] for _ in range(30)]
    assert 429 in answers
    assert answers.count(201) < 10
    assert api.ok("POST", "/jobs", JOB, x_gridhand_owner="bob")["count"] == 1


def test_a_core_and_a_priority_that_nobody_named_are_those_of_the_queue(api, server):
    use(server, short={"priority": Priority.HIGH, "defaults": {"cpu": 5000}})
    body = {**JOB, "queue": "short"}
    [job] = api.ok("POST", "/jobs", body)["jobs"]
    assert (job["priority"], job["request"]["cpu"]) == ("high", 0.5)
    [job] = api.ok("POST", "/jobs", {**body, "request": {"cpu": 1}})["jobs"]
    assert job["request"]["cpu"] == 1
