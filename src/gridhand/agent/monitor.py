"""The agent's rounds: what has to be looked at again and again while jobs run."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Callable, Iterator

from gridhand.agent import limits
from gridhand.agent.agent import Agent
from gridhand.agent.link import Facts, LinkError
from gridhand.agent.runs import Run
from gridhand.agent.usage import Sampler, TreeUsage, Usage

_ROUND_S = 0.25
_MEASURE = 2  # rounds
_TELL = 4
_ASK = 8
_DEVICES_S = 2.0
_NO_DEVICES_S = 30.0
_LONGEST_WAIT_MS = 1000  # for a turn that was expected to come in a quarter of that


class Rounds:
    """`watched` says whether anybody wants to know what is used."""

    def __init__(
        self, agent: Agent, tell: Callable[[Facts], None], watched: Callable[[], bool]
    ) -> None:
        self._agent, self._tell, self._watched = agent, tell, watched
        self._sampler = Sampler(agent.found.cpus, agent.found.bounds)
        self._sampling = asyncio.Lock()
        self._count = 0
        self._foreign: dict[str, int] = {}

    async def run(self) -> None:
        """For ever."""
        await asyncio.gather(self._jobs(), self._devices())

    async def _jobs(self) -> None:
        while True:
            await self._agent.busy.wait()
            await asyncio.sleep(_ROUND_S)
            self._count += 1
            with _told_only():
                self.look()
                self._agent.take_back(_LONGEST_WAIT_MS)
                await self.measure()
                await self._starter()

    async def _starter(self) -> None:
        if self._count % _ASK == 0:
            with contextlib.suppress(LinkError):
                if await self._agent.parent.ask_trouble():
                    self._agent.tell_node()

    def look(self) -> None:
        """What costs little: how long the logs are, and whether the kernel has ended something."""
        agent = self._agent
        for run in list(agent.running.values()):
            if run.end is None:
                for log in run.logs:
                    log.trim()
                if run.note.memory_bytes is not None and limits.killed(run.groups):
                    agent.out_of_memory(run)
        agent.pinning.spread()

    async def measure(self) -> None:
        tell = self._watched() and self._count % _TELL == 0
        measured = [run for run in self._alive() if _is_measured(run)]
        if tell or (measured and self._count % _MEASURE == 0):
            usage = await self._sample(pss=tell)
            if any(_is_over(run, usage.trees[run.job_name]) for run in self._alive(usage)):
                usage = await self._sample(pss=True)
            self._judge(usage)
            if tell:
                self._tell(self._told(usage))

    async def _sample(self, *, pss: bool) -> Usage:
        async with self._sampling:  # it is not for several threads
            trees = {run.job_name: [run.identity] for run in self._alive() if run.identity}
            return await asyncio.to_thread(self._sampler.sample, trees, pss=pss)

    def _alive(self, usage: Usage | None = None) -> list[Run]:
        every = [run for run in self._agent.running.values() if run.alive]
        return every if usage is None else [one for one in every if one.job_name in usage.trees]

    def _judge(self, usage: Usage) -> None:
        """End those that have more than they may, where the kernel does not see to it."""
        for run in self._alive(usage):
            used = usage.trees[run.job_name]
            run.peak = max(run.peak, used.memory_bytes)
            if not _is_over(run, used):
                continue
            if run.groups.memory is None and used.memory_bytes > (run.note.memory_bytes or 2**63):
                self._agent.out_of_memory(run)
            else:
                words = f"it had {used.threads} processes and threads, more than its"
                words += f" {run.note.processes}, and was ended"
                self._agent.stopping.stop(run, "signal", words, 0)

    def _told(self, usage: Usage) -> Facts:
        jobs = {
            run.job: {
                "attempt": run.number,
                "cpu": round(usage.trees[run.job_name].cpu, 3),
                "memory_bytes": usage.trees[run.job_name].memory_bytes,
                "peak_bytes": max(run.peak, limits.peak_bytes(run.groups) or 0),
            }
            for run in self._alive(usage)
        }
        node = {"cpu": round(usage.node.cpu, 3), "memory_bytes": usage.node.memory_bytes}
        return {
            "event": "usage",
            "node": node,
            "jobs": jobs,
            "foreign": self._agent.driving.watch.foreign,
        }

    async def _devices(self) -> None:
        agent = self._agent
        while True:
            there = agent.driving.watch.gpus or agent.driving.watch.problems
            await asyncio.sleep(_DEVICES_S if there else _NO_DEVICES_S)
            with _told_only():
                await self.look_at_devices()

    async def look_at_devices(self) -> None:
        agent, watch = self._agent, self._agent.driving.watch
        if await agent.driving.look(agent.own_pids):
            agent.tell_node()
        self._end_those_on_lost_devices()
        if watch.foreign != self._foreign:
            self._foreign = watch.foreign
            self._tell(await self._news())

    async def _news(self) -> Facts:
        return self._told(await self._sample(pss=False))

    def _end_those_on_lost_devices(self) -> None:
        agent = self._agent
        for run in [one for one in agent.running.values() if not one.stopping]:
            for id in sorted(agent.driving.watch.lost(run.note.devices))[:1]:
                words = f"its GPU {id} was lost, and it was ended"
                agent.stopping.stop(run, "device_lost", words, run.note.grace_ms)


def _is_measured(run: Run) -> bool:
    """Whether nobody but us sees to its limits."""
    memory = run.note.memory_bytes is not None and run.groups.memory is None
    return memory or (run.note.processes is not None and run.groups.pids is None)


def _is_over(run: Run, used: TreeUsage) -> bool:
    memory, most = run.note.memory_bytes, run.note.processes
    too_large = run.groups.memory is None and memory is not None and used.memory_bytes > memory
    return too_large or (run.groups.pids is None and most is not None and used.threads > most)


@contextlib.contextmanager
def _told_only() -> Iterator[None]:
    """A round that fails is told in the log, and the next one comes all the same."""
    try:
        yield
    except Exception:
        traceback.print_exc(file=sys.stderr)
