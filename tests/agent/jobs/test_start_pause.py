"""Row 91: a node that cannot start commands takes nothing new until a probe succeeds."""

import asyncio

import pytest

from gridhand.agent.jobs import start_pause
from gridhand.agent.jobs.start_pause import StartPause
from gridhand.agent.link_errors import LinkLost


class Node:
    """A node whose probes answer as told; it notes the pauses before them, and every change."""

    def __init__(self):
        self.answers, self.changes, self.pauses = [], [], []
        self.reopened = asyncio.Event()
        self.pause = StartPause(self.probe, self.changed)

    def changed(self):
        self.changes.append(self.pause.why)
        if not self.pause.why:
            self.reopened.set()

    async def probe(self):
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def fail(self, why, *answers):
        """Fail to start a command; return when a probe has succeeded."""
        self.answers += answers
        self.reopened.clear()
        self.pause.close(why)
        assert self.pause.problem().what == f"commands cannot be started: {why}"
        await self.reopened.wait()
        assert self.pause.problem() is None


@pytest.fixture
def run(monkeypatch):
    """Run a test with a node; its pauses are noted, and take no time."""

    def run(test):
        async def running():
            node = Node()

            async def sleep(seconds):
                node.pauses.append(seconds)

            monkeypatch.setattr(start_pause.asyncio, "sleep", sleep)
            await asyncio.wait_for(test(node), 30)
            return node

        return asyncio.run(running())

    return run


def test_it_is_closed_until_a_probe_succeeds(run):
    node = run(lambda node: node.fail("no files", "no files", LinkLost("gone"), "no memory", ""))
    assert node.changes == ["no files", "gone", "no memory", ""]
    assert node.answers == []


def test_each_pause_is_twice_the_one_before_up_to_the_longest(run):
    node = run(lambda node: node.fail("no files", *["no files"] * 8, ""))
    assert node.pauses == [0.25, 0.5, 1, 2, 4, 8, 10, 10, 10]


def test_more_failures_in_a_pause_begin_no_other(run):
    async def fail_often(node):
        node.pause.close("no files")
        node.pause.close("no files")
        await node.fail("no memory", "")

    node = run(fail_often)
    assert (node.pauses, node.changes) == ([0.25], ["no files", "no memory", ""])


@pytest.mark.parametrize(("calm_s", "next_s"), [(60.0, 1), (0.0, 0.25)])
def test_the_next_pause_is_short_again_after_a_calm_time(run, monkeypatch, calm_s, next_s):
    monkeypatch.setattr(start_pause, "_CALM_S", calm_s)

    async def fail_twice(node):
        await node.fail("no files", "no files", "")
        await node.fail("no files", "")

    assert run(fail_twice).pauses == [0.25, 0.5, next_s]
