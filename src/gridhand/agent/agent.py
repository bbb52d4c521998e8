"""The agent: it stands on a node between the controller and the starter.

It gives each attempt its cores, limits and devices, watches that it keeps to them, and stops it
when it must. It can be killed at any time: all that it has to know is in the notes that the
starter keeps, so the next agent goes on where this one was.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

from gridhand.agent.gpu.gpu_monitor import GpuMonitor
from gridhand.agent.gpu.nvml import Nvml
from gridhand.agent.hardware.discovery import discover, virtual_node
from gridhand.agent.hardware.host_readings import HostReadings
from gridhand.agent.jobs import limits
from gridhand.agent.jobs.core_load import CoreLoad
from gridhand.agent.jobs.cpu_affinity import CpuAffinity
from gridhand.agent.jobs.job_lease import MESSAGE, STOP_GRACE_MS, JobLease
from gridhand.agent.jobs.limits import Limits
from gridhand.agent.jobs.prepare import MOST_BYTES, batches, prepare
from gridhand.agent.jobs.running_attempt import RunningAttempt, overrun_message
from gridhand.agent.jobs.start_order import StartOrder
from gridhand.agent.jobs.start_pause import StartPause
from gridhand.agent.jobs.stopper import Stopper, members
from gridhand.agent.link_errors import LinkError, LinkRefused
from gridhand.agent.messages import AgentEvent, AttemptReport, Key, ProblemReport, UsageEvent
from gridhand.agent.node_report import report_node, report_problems, stuck_problems
from gridhand.agent.sample_pace import SamplePace
from gridhand.agent.starter.message_fields import (
    LeaderEnd,
    StarterEvent,
    StarterGreeting,
    StarterListing,
    StarterReport,
)
from gridhand.agent.starter_link import StarterLink
from gridhand.core.model.names import JobId
from gridhand.posix import boot_clock, temporary_folders

_LONGEST_WAIT_S = 60.0
_RESOLVE_S = 1.0
_SWEEP_S = 0.5


class Agent:
    """The attempts of a node. `tell` sends an event to all controllers that watch."""

    def __init__(
        self,
        folder: str,
        starter: str,
        tell: Callable[[AgentEvent], None],
        virtual: tuple[str, str] | None = None,
        lease_ms: int | None = None,
    ) -> None:
        """`virtual` is the name and the capacity of a virtual node to be instead of the machine.

        With `lease_ms`, jobs are stopped unless the lease is renewed in time.
        """
        nvml = Nvml()
        self.found = discover(Path(folder), nvml=nvml)
        if virtual is not None:
            self.found = virtual_node(self.found, *virtual)
        self.gpus = GpuMonitor(nvml, self.found)
        self.starter = StarterLink(starter, self._on_event, self._adopt)
        self.stopper = Stopper(self.starter, self._over, self.tell_node)
        self.host = HostReadings(Path(folder))
        self.core_load = CoreLoad()
        self.affinity = CpuAffinity(
            self.found.cpus, lambda run: [p.pid for p in members(run)], self.core_load.steps
        )
        self.limits = Limits()
        self.lease = JobLease(lease_ms)
        self.pause = StartPause(self.starter.probe, self.tell_node)
        self.runs: dict[Key, RunningAttempt] = {}
        self.running: dict[Key, RunningAttempt] = {}
        self.epoch = -1
        self.mark = ""
        self.busy = asyncio.Event()
        self.pace = SamplePace()
        self.usage: UsageEvent = {"event": "usage", "node": {}, "jobs": {}, "foreign": {}}
        self._tell = tell
        self._ended: list[RunningAttempt] = []
        self._doubtful: set[Key] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeping = False

    async def begin(self, pid: int, *, measured: bool = False) -> None:
        """Find the starter, and all that runs. With `measured` make no control groups."""
        await self.starter.connect()
        helpers = [pid, self.starter.greeting["pid"]]
        if not measured:
            self.limits = Limits.find(f"gridhand-{self.mark}", helpers)
        self.limits.sweep({folder for run in self.runs.values() for folder in run.groups.folders})
        if self.gpus.health.gpus:  # foreign use must be known before the devices are promised
            await self.gpus.look(self.own_pids)

    async def end(self) -> None:
        self.pause.stop()
        await self.starter.close(idle=not self.running)
        if not self.running:
            self.limits.leave()
        self.gpus.close()

    def node(self) -> dict[str, Any]:
        return report_node(self.found, self.gpus.health, closed=bool(self.pause.why))

    def problems(self) -> list[ProblemReport]:
        enforced, running = self.limits.enforced, self.running.values()
        unwritten = self.starter.unwritten
        other = (*self.host.problems, *filter(None, [self.pause.problem()]))
        return report_problems(self.found, self.gpus.health, enforced, running, unwritten, other)

    def trouble(self) -> str:
        """Return in one sentence why jobs cannot be started or stopped; "" if they can."""
        stuck = (problem.what for problem in stuck_problems(self.running.values()))
        unstarted = self.starter.unwritten or self.pause.why
        return "; ".join(filter(None, (self.starter.trouble, unstarted, *stuck)))

    def tell_node(self) -> None:
        self._tell({"event": "node", "node": self.node(), "problems": self.problems()})

    # ---- starting

    async def start(self, orders: Iterable[StartOrder | AttemptReport]) -> list[AttemptReport]:
        """Start the orders that are new; return the report of each, and pass reports through."""
        everything = list(orders)
        new = {
            order.key: order
            for order in everything
            if isinstance(order, StartOrder) and order.key not in self.runs
        }
        refused: dict[Key, str] = {}
        for batch in batches([self._prepare(order) for order in new.values()]):
            refused |= await self._start(batch)
        return [
            order if isinstance(order, AttemptReport) else await self._report(order, refused)
            for order in everything
        ]

    def _prepare(self, order: StartOrder) -> tuple[RunningAttempt, str]:
        run, text = prepare(order, self.affinity, self.limits, self.gpus.health.gpus, self.mark)
        self._add(run)
        return run, text

    def _add(self, run: RunningAttempt) -> None:
        self.runs[run.key] = self.running[run.key] = run
        self.busy.set()

    async def _start(self, batch: dict[RunningAttempt, str]) -> dict[Key, str]:
        """Have the starter start them; return why some are refused, which may be tried again."""
        runs = list(batch)
        try:
            if max(map(len, batch.values())) > MOST_BYTES:
                raise LinkRefused("starter", "too_long", "it is too long")
            reports = await self.starter.start(list(batch.values()))
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
        for run, report in zip(runs, reports, strict=True):
            if report["state"] == "refused":
                refused[run.key] = report["message"]
                self.pause.close(report["message"])
                self.runs.pop(run.key, None)
                self._release(run)
            elif run.end is None:
                self._begun(run, report)
            run.settled.set()
        self._flush()
        return refused

    async def _report(self, order: StartOrder, refused: dict[Key, str]) -> AttemptReport:
        run = self.runs.get(order.key)
        if run is not None:
            await run.settled.wait()
            run = self.runs.get(order.key)
        if run is not None:
            return run.report()
        message = refused.get(order.key, "it was not started")
        return AttemptReport(order.job, order.attempt, order.fence, "refused", message=message)

    def _begun(self, run: RunningAttempt, report: StarterReport) -> None:
        late = run.waiting_since is not None
        run.update(report)
        if run.exit is not None:
            self._leader_ended(run, may_have_left=True)
            return
        if run.waiting_since is not None:
            if run.stopping:
                self.stopper.withdraw([run])
            return
        self.affinity.begun(run, late=late)
        self._keep_to_limits(run)
        if run.stopping:
            self.stopper.carry_out(run)

    def _keep_to_limits(self, run: RunningAttempt) -> None:
        self._arm(run)
        if not limits.tighten(run.groups, run.note.memory_bytes, run.note.processes):
            self.out_of_memory(run)

    def _arm(self, run: RunningAttempt) -> None:
        """Stop the attempt if its time is over, else set a timer for that and for its warning."""
        if run.due is None or run.end is not None:
            return
        now = boot_clock.boot_ms()
        if run.due <= now:
            message = overrun_message(run.note.time_limit_ms or 0)
            self.stopper.stop(run, "timeout", message, run.note.grace_ms)
            return
        if run.warn_due is not None and run.warn_due <= now:
            self.stopper.forewarn(run)
        left_s = (min(run.due, run.warn_due or run.due) - now) / 1000
        wait_s = min(left_s, _LONGEST_WAIT_S)  # the loop's clock stands while the machine sleeps
        run.deadline = asyncio.get_running_loop().call_later(wait_s, self._arm, run)

    def check_lease(self) -> None:
        """Stop all attempts if the lease is over."""
        if self.lease.is_over():
            for run in [run for run in self.running.values() if not run.stopping]:
                grace_ms = min(run.note.grace_ms, STOP_GRACE_MS)
                self.stopper.stop(run, "node_lost", MESSAGE, grace_ms)

    def out_of_memory(self, run: RunningAttempt) -> None:
        self.stopper.stop(run, "oom", "", 0)

    def _doubt(self, runs: list[RunningAttempt]) -> None:
        """Count attempts as running until it is known: the starter did not answer."""
        for run in runs:
            run.settled.set()
        self._doubtful |= {run.key for run in runs if run.pid is None and run.end is None}
        self._spawn(self._resolve())

    async def _resolve(self) -> None:
        while self._doubtful:
            with contextlib.suppress(LinkError):
                self._adopt(self.starter.greeting, await self.starter.list_attempts())
            await asyncio.sleep(_RESOLVE_S)

    def _fail(self, run: RunningAttempt, message: str) -> None:
        """End an attempt that has no process, and never will have one."""
        run.exit = {"reason": "start_failed", "message": message}
        self._close(run)
        self._flush()

    # ---- ending

    def _on_event(self, event: StarterEvent) -> None:
        if event["event"] == "begun":
            self._turns_came(event["attempts"])
        if event["event"] != "ended":
            return
        left = event.get("strays", True)
        for report in event["attempts"]:
            run = self.runs.get((JobId(report["job"]), report["attempt"]))
            if run is None:
                self._adopt_one(report)
            elif run.end is None:
                run.update(report)
                self._leader_ended(run, may_have_left=left)
        self._flush()

    def _turns_came(self, reports: list[StarterReport]) -> None:
        """Tell of attempts that have waited for others, and have begun by themselves."""
        keys = [self._adopt_one(report) for report in reports]
        begun = [self.runs[key].report().encode() for key in keys if key in self.running]
        if begun:
            self._tell({"event": "begun", "attempts": begun})

    def return_waiting(self, longer_ms: int) -> None:
        """Give back attempts that have waited longer than that: they had better go elsewhere."""
        since = boot_clock.boot_ms() - longer_ms
        waiting = [run for run in self.running.values() if (run.waiting_since or since) < since]
        if waiting:
            self.stopper.withdraw(waiting)

    def _leader_ended(self, run: RunningAttempt, *, may_have_left: bool) -> None:
        """Close the attempt, or kill what is left; a group knows that better than the starter."""
        if run.end is not None or run.clearing is not None:
            return
        if may_have_left and run.may_have_begun and run.groups.members() != set():
            self.stopper.kill(run)
        else:
            self._close(run)

    def _over(self, run: RunningAttempt) -> None:
        self._close(run)
        self._flush()

    def _close(self, run: RunningAttempt) -> None:
        """Set the end of an attempt without processes, release what it had, and tell it."""
        if run.end is not None:
            return
        if run.exit is not None and (shortage := run.exit.get("shortage")):
            self.pause.close(shortage)
        if run.deadline is not None:
            run.deadline.cancel()
        run.close(limits.oom_kills(run.groups), limits.peak_bytes(run.groups))
        if not self._sweeping:
            self._sweeping = True
            self._spawn(self._sweep())
        if run.failed and limits.refused_forks(run.groups):
            run.add_message(f"it reached its limit of {run.note.processes} processes and threads")
        if run.note.devices and self.gpus.health.gpus:
            self._spawn(self._close_devices(run))
        else:
            self._tell_end(run)

    async def _sweep(self) -> None:
        """Remove what killed jobs left in shared memory, once for all that end about now."""
        await asyncio.sleep(_SWEEP_S)
        self._sweeping = False
        await asyncio.to_thread(temporary_folders.sweep)

    async def _close_devices(self, run: RunningAttempt) -> None:
        """Wait until the devices' memory is free before the end is told, for the next job."""
        if not await self.gpus.all_free(lambda: self._devices_only_of(run), self.own_pids):
            self.tell_node()
        self._tell_end(run)
        self._flush()

    def _devices_only_of(self, run: RunningAttempt) -> set[str]:
        """Return its devices, without those that others have a share in."""
        others = (other for other in self.running.values() if other is not run)
        return set(run.note.devices) - {id for other in others for id in other.note.devices}

    def own_pids(self) -> set[int]:
        """Return the processes of all attempts with a device."""
        return set(self.device_jobs())

    def device_jobs(self) -> dict[int, JobId]:
        """Return the job of each process of an attempt with a device."""
        having = [run for run in self.running.values() if run.note.devices]
        return {process.pid: run.job for run in having for process in members(run)}

    def _release(self, run: RunningAttempt) -> None:
        """Release the cores and control groups of an attempt."""
        self.affinity.give_back(run.key)
        for folder in run.groups.folders:
            limits.remove(folder)
        self.running.pop(run.key, None)
        if not self.running:
            self.busy.clear()

    def _tell_end(self, run: RunningAttempt) -> None:
        self._release(run)
        run.settled.set()
        self._ended.append(run)

    def _flush(self) -> None:
        """Tell all ends that are known by now in one event."""
        if self._ended:
            ended, self._ended = self._ended, []
            reports = [run.report().encode() for run in ended]
            self._tell({"event": "ended", "attempts": reports})

    # ---- adopting

    def _adopt(self, greeting: StarterGreeting, listing: StarterListing) -> None:
        """Take over all that the starter knows, and update the attempts that are known here."""
        self.mark = greeting["mark"]
        self.epoch = max(self.epoch, greeting["epoch"])
        doubtful, self._doubtful = self._doubtful, set()
        known = {self._adopt_one(report) for report in [*listing["running"], *listing["ended"]]}
        for run in [run for run in self.running.values() if run.key not in known]:
            in_doubt = run.key in doubtful
            if in_doubt and not run.groups.members():
                self._fail(run, "it could not be started: the starter did not answer")
            elif run.waiting_since is not None:
                run.exit = {"reason": "returned", "message": "the starter has lost its journal"}
                self._close(run)
            elif (run.pid is not None or in_doubt) and run.clearing is None:
                run.exit = run.exit or _forgotten()
                self._leader_ended(run, may_have_left=True)
        self._flush()

    def _adopt_one(self, report: StarterReport) -> Key:
        run = self.runs.get((JobId(report["job"]), report["attempt"]))
        if run is None:
            run = RunningAttempt.adopted(report)
            self._add(run)
            self.affinity.keep(run)
            if run.exit is None and run.waiting_since is None:
                self._keep_to_limits(run)
        elif run.pid is None and run.end is None:
            self._begun(run, report)
        run.update(report)
        if run.exit is not None:
            left = bool(report.get("survivors", True)) or bool(run.groups.members())
            self._leader_ended(run, may_have_left=left)
        return run.key

    def forget(self, keys: Iterable[Key]) -> list[Key]:
        """Forget the attempts that are over; return their keys."""
        gone = [key for key in keys if key in self.runs and key not in self.running]
        for key in gone:
            del self.runs[key]
        return gone

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _forgotten() -> LeaderEnd:
    message = "exit status unknown: the starter has lost its journal"
    return {"reason": "lost", "message": message, "ended_boot_ms": boot_clock.boot_ms()}
