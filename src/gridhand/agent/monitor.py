"""The agent's periodic work: checks of running jobs and of devices, and samples of the node."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterator

from gridhand.agent.agent import Agent
from gridhand.agent.hardware.usage import Sampler, TreeUsage, Usage
from gridhand.agent.jobs import limits
from gridhand.agent.jobs.back_pressure import press
from gridhand.agent.jobs.running_attempt import RunningAttempt
from gridhand.agent.link_errors import LinkError
from gridhand.agent.messages import AgentEvent
from gridhand.agent.node_sampler import NodeSampler

_ROUND_S = 0.25
_MEASURE_ROUNDS = 2  # how often usage is measured, if a limit depends on it
_PEAK_ROUNDS = 4  # how often it is measured, if the kernel does not keep the peak
_STARTER_ROUNDS = 8  # how often the starter is asked for its trouble
_DEVICES_S = 2.0
_NO_DEVICES_S = 30.0
_LONGEST_WAIT_MS = 1000  # for a turn that was expected to come in a quarter of that


class Monitor:
    """Checks all attempts in rounds, and takes samples of the node at its own pace."""

    def __init__(
        self,
        agent: Agent,
        tell: Callable[[AgentEvent], None],
        controllers: Callable[[], Collection[int]],
    ) -> None:
        """`controllers` returns the pids of the controllers that are connected."""
        self._agent, self._tell = agent, tell
        self._node_sampler = NodeSampler(agent, controllers)
        self._sampler = Sampler(agent.found.cpus, agent.found.bounds)
        self._sampling = asyncio.Lock()
        self._count = 0
        self._foreign: dict[str, int] = {}

    async def run(self) -> None:
        """Check jobs and devices, and take samples, for ever."""
        await asyncio.gather(self._check_jobs(), self._check_devices(), self._take_samples())

    async def _take_samples(self) -> None:
        pace = self._agent.pace
        while True:
            await pace.wait()
            with _errors_logged():
                await self.sample()

    async def sample(self) -> None:
        """Measure the node and tell it."""
        agent = self._agent
        agent.core_load.steps()  # so that the next job is pinned by the load of the last seconds
        agent.usage = await self._node_sampler.sample(agent.pace.taken())
        self._tell(agent.usage)

    async def _check_jobs(self) -> None:
        while True:
            await self._agent.busy.wait()
            await asyncio.sleep(_ROUND_S)
            self._count += 1
            with _errors_logged():
                self.look()
                self._agent.check_lease()
                self._agent.return_waiting(_LONGEST_WAIT_MS)
                await self.measure()
                self._measure_new_soon()
                await self._ask_starter()

    async def _ask_starter(self) -> None:
        if self._count % _STARTER_ROUNDS == 0:
            with contextlib.suppress(LinkError):
                if await self._agent.starter.ask_trouble():
                    self._agent.tell_node()

    def look(self) -> None:
        """Do the cheap checks: trim logs, and notice what the kernel's OOM killer has ended."""
        agent = self._agent
        for run in list(agent.running.values()):
            if run.end is None:
                for log in run.logs:
                    log.trim()
                if run.alive:
                    press(run)
                if run.note.memory_bytes is not None and limits.oom_kills(run.groups):
                    agent.out_of_memory(run)
        agent.affinity.spread()

    def _measure_new_soon(self) -> None:
        """Have jobs that have begun since the last sample measured within a second."""
        if any(run.tree_name not in self._node_sampler.sampled for run in self._alive()):
            self._agent.pace.ask_soon()

    async def measure(self) -> None:
        """Measure what jobs use if its round has come, and stop what is over a limit."""
        alive = self._alive()
        limited = self._count % _MEASURE_ROUNDS == 0 and any(map(_is_measured, alive))
        peaks = self._count % _PEAK_ROUNDS == 0 and any(run.groups.memory is None for run in alive)
        if limited or peaks:
            usage = await self._sample(pss=False)
            if any(_is_over(run, usage.trees[run.tree_name]) for run in self._alive(usage)):
                usage = await self._sample(pss=True)
            self._stop_excess(usage)

    async def _sample(self, *, pss: bool) -> Usage:
        async with self._sampling:  # a sampler is not safe for several threads
            trees = {run.tree_name: [run.identity] for run in self._alive() if run.identity}
            return await asyncio.to_thread(self._sampler.sample, trees, pss=pss)

    def _alive(self, usage: Usage | None = None) -> list[RunningAttempt]:
        alive = [run for run in self._agent.running.values() if run.alive]
        return alive if usage is None else [run for run in alive if run.tree_name in usage.trees]

    def _stop_excess(self, usage: Usage) -> None:
        """Stop attempts over a limit that the kernel does not enforce."""
        for run in self._alive(usage):
            used = usage.trees[run.tree_name]
            run.peak = max(run.peak, used.memory_bytes)
            if not _is_over(run, used):
                continue
            if run.groups.memory is None and used.memory_bytes > (run.note.memory_bytes or 2**63):
                self._agent.out_of_memory(run)
            else:
                numbers = f"limit {run.note.processes}, had {used.threads}"
                text = f"killed: too many processes and threads ({numbers})"
                self._agent.stopper.stop(run, "signal", text, 0)

    async def _check_devices(self) -> None:
        health = self._agent.gpus.health
        while True:
            there = health.gpus or health.problems
            often = min(_DEVICES_S, self._agent.pace.every_ms() / 1000)
            await asyncio.sleep(often if there else _NO_DEVICES_S)
            with _errors_logged():
                await self.look_at_devices()

    async def look_at_devices(self) -> None:
        """Read the GPUs, stop jobs on lost ones, and tell what has changed."""
        agent, health = self._agent, self._agent.gpus.health
        if await agent.gpus.look(agent.own_pids):
            agent.tell_node()
        self._stop_on_lost_devices()
        if health.foreign != self._foreign:
            self._foreign = health.foreign
            self._tell({**agent.usage, "foreign": health.foreign})

    def _stop_on_lost_devices(self) -> None:
        agent = self._agent
        for run in [run for run in agent.running.values() if not run.stopping]:
            for id in sorted(agent.gpus.health.lost(run.note.devices))[:1]:
                text = f"its GPU {id} was lost, and it was ended"
                agent.stopper.stop(run, "device_lost", text, run.note.grace_ms)


def _is_measured(run: RunningAttempt) -> bool:
    """Return whether it has a limit that the kernel does not enforce."""
    memory = run.note.memory_bytes is not None and run.groups.memory is None
    return memory or (run.note.processes is not None and run.groups.pids is None)


def _is_over(run: RunningAttempt, used: TreeUsage) -> bool:
    """Return whether it uses more than a limit that the kernel does not enforce."""
    memory, most = run.note.memory_bytes, run.note.processes
    too_large = run.groups.memory is None and memory is not None and used.memory_bytes > memory
    return too_large or (run.groups.pids is None and most is not None and used.threads > most)


@contextlib.contextmanager
def _errors_logged() -> Iterator[None]:
    """Log an error of a round instead of raising it: the next round comes all the same."""
    try:
        yield
    except Exception:
        traceback.print_exc(file=sys.stderr)
