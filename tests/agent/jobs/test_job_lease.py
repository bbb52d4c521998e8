"""The lease of jobs: an agent elsewhere stops them when nobody renews it in time."""

import pytest

from gridhand.agent.jobs import job_lease
from gridhand.agent.jobs.job_lease import JobLease


@pytest.fixture
def clock(monkeypatch):
    now = [1000]
    monkeypatch.setattr(job_lease.boot_clock, "boot_ms", lambda: now[0])
    return now


def test_without_a_lease_jobs_run_for_ever(clock):
    lease = JobLease()
    clock[0] += 10**9
    assert not lease.is_over()


def test_a_lease_is_over_unless_it_is_renewed(clock):
    lease = JobLease(15_000)
    clock[0] += 14_999
    assert not lease.is_over()
    lease.renew(15_000)
    clock[0] += 14_999
    assert not lease.is_over()
    clock[0] += 1
    assert lease.is_over()
    lease.renew(1)
    assert not lease.is_over()


def test_an_agent_stops_all_jobs_when_its_lease_is_over(node, agent):
    for job in ("a", "b"):
        agent.start(node.order(job, "/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"))
    agent.ask("lease", for_ms=600_000)
    assert len(agent.ask("list")["running"]) == 2
    agent.ask("lease", for_ms=0)
    ends = agent.ends(2)
    assert {job: end["reason"] for job, end in ends.items()} == {"a": "node_lost", "b": "node_lost"}
    assert "cut off" in ends["a"]["message"]


def test_an_agent_begins_with_the_lease_that_it_was_given(node):
    node.launch("--lease", "1")
    agent = node.connect()
    agent.start(node.order("j", "/bin/sleep", "1000"))
    assert agent.ends()["j"]["reason"] == "node_lost"


def test_a_lease_that_makes_no_sense_is_refused(agent):
    for wrong in (-1, "1", None, 10**12):
        assert agent.ask("lease", for_ms=wrong)[0] == "malformed"
