"""The agent: stands on a node between the controller and the starter.

It gives each attempt its cores, limits and devices, watches that it keeps to them, and ends it when
it must. It can be killed at any time: all that it has to know is in the notes that the starter
keeps, so the next agent goes on where this one was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from gridhand.agent import limits, processes
from gridhand.agent.asked import Asked, Unreadable
from gridhand.agent.driving import Driving
from gridhand.agent.hardware import discover, stand_in
from gridhand.agent.limits import Limits
from gridhand.agent.link import Facts, LinkError, LinkRefused
from gridhand.agent.nvml import Nvml
from gridhand.agent.parent import Parent
from gridhand.agent.pinning import Pinning
from gridhand.agent.preparing import MOST_BYTES, batches, prepare
from gridhand.agent.runs import Key, Run, overrun
from gridhand.agent.stopping import Stopping, members
from gridhand.agent.telling import node_facts, problem_facts, stuck

_LONGEST_WAIT_S = 60.0
_RESOLVE_S = 1.0


class Agent:
    """`tell` sends an event to all that watch."""

    def __init__(
        self,
        folder: str,
        starter: str,
        tell: Callable[[Facts], None],
        stands_for: tuple[str, str] | None = None,
    ) -> None:
        """`stands_for` is the name and the capacity of another node than this machine is."""
        nvml = Nvml()
        self.found = discover(Path(folder), nvml=nvml)
        if stands_for is not None:
            self.found = stand_in(self.found, *stands_for)
        self.driving = Driving(nvml, self.found)
        self.parent = Parent(starter, self._event, self._adopt)
        self.stopping = Stopping(self.parent, self._over, self.tell_node)
        self.pinning = Pinning(self.found.cpus, lambda run: [one.pid for one in members(run)])
        self.limits = Limits()
        self.runs: dict[Key, Run] = {}
        self.running: dict[Key, Run] = {}
        self.epoch = -1
        self.mark = ""
        self.busy = asyncio.Event()
        self._tell = tell
        self._ended: list[Run] = []
        self._doubtful: set[Key] = set()
        self._working: set[asyncio.Task[None]] = set()

    async def begin(self, pid: int, *, measured: bool = False) -> None:
        """Find the starter, and all that runs; `measured` makes no control groups."""
        await self.parent.connect()
        helpers = [pid, self.parent.greeting["pid"]]
        if not measured:
            self.limits = Limits.find(f"gridhand-{self.mark}", helpers)
        self.limits.sweep({one for run in self.runs.values() for one in run.groups.folders})
        if self.driving.watch.gpus:  # who uses them must be known before they are promised
            await self.driving.look(self.own_pids)

    async def end(self) -> None:
        await self.parent.close(idle=not self.running)
        if not self.running:
            self.limits.leave()
        self.driving.close()

    def node(self) -> Facts:
        return node_facts(self.found, self.driving.watch)

    def problems(self) -> list[Facts]:
        enforced, running = self.limits.enforced, self.running.values()
        unwritten = self.parent.unwritten
        return problem_facts(self.found, self.driving.watch, enforced, running, unwritten)

    def trouble(self) -> str:
        """What keeps jobs from being started or ended, in one sentence; empty if nothing does."""
        stuck_ones = (one.what for one in stuck(self.running.values()))
        words = (self.parent.trouble, self.parent.unwritten, *stuck_ones)
        return "; ".join(filter(None, words))

    def tell_node(self) -> None:
        self._tell({"event": "node", "node": self.node(), "problems": self.problems()})

    # ---- what is started

    async def start(self, wanted: Iterable[Asked | Unreadable]) -> list[Facts]:
        """Start those that are new, and say of each what is known."""
        every = list(wanted)
        new = {one.key: one for one in every if isinstance(one, Asked) and one.key not in self.runs}
        refused: dict[Key, str] = {}
        for batch in batches([self._prepare(one) for one in new.values()]):
            refused |= await self._start(batch)
        return [await self._told(one, refused) for one in every]

    def _prepare(self, asked: Asked) -> tuple[Run, str]:
        run, text = prepare(asked, self.pinning, self.limits, self.driving.watch.gpus, self.mark)
        self._know(run)
        return run, text

    def _know(self, run: Run) -> None:
        self.runs[run.key] = self.running[run.key] = run
        self.busy.set()

    async def _start(self, batch: dict[Run, str]) -> dict[Key, str]:
        """Have them started; returns why some were not, who may be asked for again."""
        runs = list(batch)
        try:
            if max(map(len, batch.values())) > MOST_BYTES:
                raise LinkRefused("starter", "too_long", "it is too long")
            told = await self.parent.start(list(batch.values()))
        except LinkRefused as error:
            if len(batch) > 1:  # one of them is not understood: the others must not suffer
                for run, text in batch.items():
                    await self._start({run: text})
            else:
                self._fail(runs[0], f"it could not be started: {error}")
            return {}
        except LinkError:
            self._doubt(runs)
            return {}
        refused = {}
        for run, facts in zip(runs, told, strict=True):
            if facts["state"] == "refused":
                refused[run.key] = facts["message"]
                self.runs.pop(run.key, None)
                self._leave(run)
            elif run.end is None:
                self._begun(run, facts)
            run.settled.set()
        self._flush()
        return refused

    async def _told(self, one: Asked | Unreadable, refused: dict[Key, str]) -> Facts:
        if isinstance(one, Unreadable):
            return one.fact()
        known = self.runs.get(one.key)
        if known is not None:
            await known.settled.wait()
            known = self.runs.get(one.key)
        if known is not None:
            return known.fact()
        name = {"job": one.job, "attempt": one.attempt, "fence": one.fence, "pid": None}
        return {**name, "state": "refused", "message": refused.get(one.key, "it was not started")}

    def _begun(self, run: Run, told: Facts) -> None:
        late = run.waiting_since is not None
        run.took(told)
        if run.exit is not None:
            self._leader_ended(run, may_have_left=True)
            return
        if run.waiting_since is not None:
            if run.stopping:
                self.stopping.take_out([run])
            return
        self.pinning.begun(run, late=late)
        self._keep_to_limits(run)
        if run.stopping:
            self.stopping.carry_out(run)

    def _keep_to_limits(self, run: Run) -> None:
        self._arm(run)
        if not limits.tighten(run.groups, run.note.memory_bytes, run.note.processes):
            self.out_of_memory(run)

    def _arm(self, run: Run) -> None:
        """Come back when its time is over."""
        if run.due is None or run.end is not None:
            return
        left_s = (run.due - processes.boot_ms()) / 1000
        if left_s <= 0:
            words = overrun(run.note.time_limit_ms or 0)
            self.stopping.stop(run, "timeout", words, run.note.grace_ms)
            return
        wait_s = min(left_s, _LONGEST_WAIT_S)  # the loop's clock stands while the machine sleeps
        run.deadline = asyncio.get_running_loop().call_later(wait_s, self._arm, run)

    def out_of_memory(self, run: Run) -> None:
        self.stopping.stop(run, "oom", "", 0)

    def _doubt(self, runs: list[Run]) -> None:
        """Nobody answers, and they may run or not. They count as running until that is known."""
        for run in runs:
            run.settled.set()
        self._doubtful |= {run.key for run in runs if run.pid is None and run.end is None}
        self._spawn(self._resolve())

    async def _resolve(self) -> None:
        while self._doubtful:
            with contextlib.suppress(LinkError):
                self._adopt(self.parent.greeting, await self.parent.ask({"do": "list"}))
            await asyncio.sleep(_RESOLVE_S)

    def _fail(self, run: Run, words: str) -> None:
        """There is no process of it, and there will be none."""
        run.exit = {"reason": "start_failed", "message": words}
        self._close(run)
        self._flush()

    # ---- what has ended

    def _event(self, event: Facts) -> None:
        if event.get("event") == "begun":
            self._turns_came(event["attempts"])
        if event.get("event") != "ended":
            return
        left = event.get("strays", True)
        for told in event["attempts"]:
            run = self.runs.get((told["job"], told["attempt"]))
            if run is None:
                self._adopt_one(told)
            elif run.end is None:
                run.took(told)
                self._leader_ended(run, may_have_left=left)
        self._flush()

    def _turns_came(self, attempts: list[Facts]) -> None:
        """These had waited for others, and have begun by themselves."""
        keys = [self._adopt_one(told) for told in attempts]
        begun = [self.runs[key].fact() for key in keys if key in self.running]
        if begun:
            self._tell({"event": "begun", "attempts": begun})

    def take_back(self, longer_ms: int) -> None:
        """Those that have waited longer than that for their turn had better go elsewhere."""
        since = processes.boot_ms() - longer_ms
        waiting = [one for one in self.running.values() if (one.waiting_since or since) < since]
        if waiting:
            self.stopping.take_out(waiting)

    def _leader_ended(self, run: Run, *, may_have_left: bool) -> None:
        """It is over, unless some of it is left, as a group tells better than the starter."""
        if run.end is not None or run.clearing is not None:
            return
        if may_have_left and run.pid is not None and run.groups.members() != set():
            self.stopping.kill(run)
        else:
            self._close(run)

    def _over(self, run: Run) -> None:
        self._close(run)
        self._flush()

    def _close(self, run: Run) -> None:
        """Nothing of it is left: see how it was, give back what it had, and tell."""
        if run.end is not None:
            return
        if run.deadline is not None:
            run.deadline.cancel()
        run.close(limits.killed(run.groups), limits.peak_bytes(run.groups))
        if run.failed and limits.refused(run.groups):
            run.add_words(f"it had come to its {run.note.processes} processes and threads")
        if run.note.devices and self.driving.watch.gpus:
            self._spawn(self._close_devices(run))
        else:
            self._tell_end(run)

    async def _close_devices(self, run: Run) -> None:
        """Before the end is told: whoever comes next must find the devices' memory free."""
        if not await self.driving.all_free(lambda: self._only_of(run), self.own_pids):
            self.tell_node()
        self._tell_end(run)
        self._flush()

    def _only_of(self, run: Run) -> set[str]:
        """Its devices, without those that others have a share in."""
        others = (one for one in self.running.values() if one is not run)
        return set(run.note.devices) - {device for one in others for device in one.note.devices}

    def own_pids(self) -> set[int]:
        """The processes of those that were given a device."""
        having = [run for run in self.running.values() if run.note.devices]
        return {one.pid for run in having for one in members(run)}

    def _leave(self, run: Run) -> None:
        """It has nothing any more."""
        self.pinning.give_back(run.key)
        for folder in run.groups.folders:
            limits.remove(folder)
        self.running.pop(run.key, None)
        if not self.running:
            self.busy.clear()

    def _tell_end(self, run: Run) -> None:
        self._leave(run)
        run.settled.set()
        self._ended.append(run)

    def _flush(self) -> None:
        """Tell of all that is over by now, at once."""
        if self._ended:
            ended, self._ended = self._ended, []
            self._tell({"event": "ended", "attempts": [run.fact() for run in ended]})

    # ---- what is found

    def _adopt(self, greeting: Facts, listing: Facts) -> None:
        """Take over what the starter knows; of what we know already, learn what has changed."""
        self.mark = greeting["mark"]
        self.epoch = max(self.epoch, greeting["epoch"])
        doubtful, self._doubtful = self._doubtful, set()
        known = {self._adopt_one(told) for told in [*listing["running"], *listing["ended"]]}
        for run in [one for one in self.running.values() if one.key not in known]:
            if run.key in doubtful:
                self._fail(run, "it could not be started: the starter did not answer")
            elif run.waiting_since is not None:
                run.exit = {"reason": "returned", "message": "the starter has lost what it knew"}
                self._close(run)
            elif run.pid is not None and run.clearing is None:
                run.exit = run.exit or _forgotten()
                self._close(run)
        self._flush()

    def _adopt_one(self, told: Facts) -> Key:
        run = self.runs.get((told["job"], told["attempt"]))
        if run is None:
            run = Run.adopted(told)
            self._know(run)
            self.pinning.keep(run)
            if run.exit is None and run.waiting_since is None:
                self._keep_to_limits(run)
        elif run.pid is None and run.end is None:
            self._begun(run, told)
        run.took(told)
        if run.exit is not None:
            left = bool(told.get("survivors", True)) or bool(run.groups.members())
            self._leader_ended(run, may_have_left=left)
        return run.key

    def forget(self, keys: Iterable[Key]) -> list[Key]:
        """Those that are over, and are known elsewhere now."""
        gone = [key for key in keys if key in self.runs and key not in self.running]
        for key in gone:
            del self.runs[key]
        return gone

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._working.add(task)
        task.add_done_callback(self._working.discard)


def _forgotten() -> Facts:
    words = "exit status unknown: the starter has lost what it knew"
    return {"reason": "lost", "message": words, "ended_boot_ms": processes.boot_ms()}
