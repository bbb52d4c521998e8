"""Orders: exactly what was granted, and where the job writes."""

import pytest

from gridhand.controller.jobs.start_orders import LOG_BYTES, PROCESSES, log_path, make_order
from gridhand.core.jobs import job as jobs
from gridhand.core.jobs.job import JobSpec
from gridhand.core.ledger.allocations import Terms
from gridhand.core.ledger.ledger import Ledger
from gridhand.core.model.nodes import Node
from gridhand.core.model.requests import Request
from gridhand.core.placement.place import place
from gridhand.core.placement.snapshot import Snapshot


def started(request=None, *, array=None, index=None, **wishes):
    """A job with an attempt under way, and what it holds."""
    ledger = Ledger()
    gpus = [{"model": "A100", "memory": "40GB"}] * 2
    ledger.register(Node.of("n1", cpu=8, memory="16GB", gpus=gpus))
    asked = request or Request.of(cpu=1)
    [held] = ledger.grant([place(asked, Snapshot(ledger))], Terms("ann"), now=5)
    work = JobSpec("ann", ("echo", "a b"), "/work", asked, **wishes)
    job = jobs.submit(work, id="17", number=17, now=5, array=array, array_index=index)
    return jobs.start(job, node="n1", allocation=held.id, now=5), held


def order(*args, pin=True, environment=None, **wishes):
    job, held = started(*args, **wishes)
    return make_order(job, held, folder="/h/17", environment=environment or {}, pin=pin)


def test_an_order_has_what_was_granted_and_what_was_asked():
    asked = Request.of(cpu=1.5, memory="2GB", gpu=0.5, gpu_memory="10GB")
    warning = {"warn_signal": 10, "warn_ms": 80}
    found = order(asked, time_limit_ms=9000, grace_ms=70, processes=9, stdin="/in", **warning)
    assert (found.warn_signal, found.warn_ms) == (10, 80)
    assert (found.job, found.attempt, found.node) == ("17", 1, "n1")
    assert (found.argv, found.cwd) == (["echo", "a b"], "/work")
    assert (found.cores, found.memory_bytes) == (15_000, 2 * 10**9)
    assert found.devices == ["n1/0"]
    assert found.gpu_memory == {"n1/0": 10**10}
    assert (found.time_limit_ms, found.grace_ms, found.processes) == (9000, 70, 9)
    assert (found.stdin, found.log_bytes, found.pin) == ("/in", LOG_BYTES, True)
    assert found.fence.startswith("a")


def test_what_was_not_asked_for_is_not_limited_but_for_the_number_of_processes():
    found = order(Request.of(fpga=0, cpu=1))
    assert found.memory_bytes is None
    assert found.time_limit_ms is None
    assert found.processes == PROCESSES
    assert found.devices == []


def test_its_own_variables_count_more_than_those_of_the_caller():
    mine = {"GRIDHAND_VARIANT": "9", "GRIDHAND_ARRAY_TASK_ID": "9", "PATH": "/bin"}
    alone = order(environment=mine).env
    assert alone == {**mine, "GRIDHAND_VARIANT": "0"}
    task = order(environment=mine, array="17", index=4).env
    assert task["GRIDHAND_ARRAY_TASK_ID"] == "4"
    assert task["GRIDHAND_ARRAY_ID"] == "17"
    assert mine["GRIDHAND_VARIANT"] == "9"  # those that were given are not changed


#    what it shows                       named           array, index  where it goes
PATHS = {
    "a file of ours unless told":       (None,           None, None, "/h/17/stdout"),
    "a path as it is":                  ("/tmp/out",     None, None, "/tmp/out"),
    "the job's id":                     ("/t/%j.out",    None, None, "/t/17.out"),
    "an array and the place in it":     ("/t/%A-%a",     "16", 3,    "/t/16-3"),
    "outside of one, the job and none": ("/t/%A-%a",     None, None, "/t/17-0"),
    "a percent that stands for itself": ("/t/%x%",       None, None, "/t/%x%"),
}  # fmt: skip


@pytest.mark.parametrize(("named", "array", "index", "path"), PATHS.values(), ids=PATHS)
def test_where_a_job_writes(named, array, index, path):
    job, _ = started(array=array, index=index, stdout=named)
    assert log_path(job, "/h/17", "stdout") == path


def test_devices_are_named_by_what_they_are():
    found = order(Request.of(gpu=2))
    assert found.devices == ["n1/0", "n1/1"]


def test_a_member_of_a_gang_finds_its_rank_and_where_the_members_meet():
    job, held = started(array="17", index=2, nodes=4)
    attempt = job.attempt._replace(master="10.0.0.7:20017")
    job = job._replace(attempts=(attempt,))
    found = make_order(job, held, folder="/h/17", environment={"RANK": "mine"}, pin=True).env
    assert (found["RANK"], found["GRIDHAND_RANK"]) == ("2", "2")
    assert (found["WORLD_SIZE"], found["GRIDHAND_WORLD_SIZE"]) == ("4", "4")
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("10.0.0.7", "20017")


def test_a_job_that_a_member_submits_has_no_rank():
    of_member = {"GRIDHAND_RANK": "1", "RANK": "1", "MASTER_ADDR": "10.0.0.7", "HOME": "/h"}
    found = order(environment=of_member).env
    assert found["HOME"] == "/h"
    assert not {"GRIDHAND_RANK", "RANK", "MASTER_ADDR"} & found.keys()
    assert order(environment={"RANK": "mine"}).env["RANK"] == "mine"
