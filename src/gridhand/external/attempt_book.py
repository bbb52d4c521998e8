"""AttemptBook: the attempts that a worker knows, and what it has not reported of them yet."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from gridhand.core.model.names import AllocationId
from gridhand.engines.base import AttemptReport, EndReport, Key, StartOrder


class AttemptBook:
    """Every attempt from its order until the controller has it forgotten."""

    def __init__(self, news: Callable[[], object] = lambda: None) -> None:
        """`news` is called when an attempt has ended that the agent knows nothing of."""
        self._news = news
        self._reports: dict[Key, AttemptReport] = {}
        self._orders: dict[Key, StartOrder] = {}  # that the agent may not have got
        self._unreported: dict[Key, None] = {}
        self._told: set[Key] = set()  # the ends that a controller has got, after all output

    def __contains__(self, key: Key) -> bool:
        return key in self._reports

    def fence(self, key: Key) -> AllocationId | None:
        return self._reports[key].fence if key in self._reports else None

    def order(self, order: StartOrder) -> None:
        """Add an attempt that is about to be started."""
        self._orders[order.key] = order
        self._reports[order.key] = AttemptReport(order.job, order.attempt, order.fence, "running")

    def unknown_orders(self, known: Iterable[AttemptReport]) -> list[StartOrder]:
        """Return the orders that an agent does not know, which says that it knows these."""
        there = {report.key for report in known}
        return [order for key, order in self._orders.items() if key not in there]

    def note(self, reports: Iterable[AttemptReport]) -> None:
        """Take over what the agent says; an attempt that has ended stays so."""
        for report in reports:
            known = self._reports.get(report.key)
            if known is not None:
                if known.state == "ended" and report.state != "ended":
                    continue
                report.fence = report.fence or known.fence
            self._reports[report.key] = report
            self._orders.pop(report.key, None)
            self._unreported[report.key] = None

    def fail(self, key: Key, fence: AllocationId, why: str) -> None:
        """End an attempt that could not be prepared."""
        end = EndReport("start_failed", why, ran_ms=0)
        self.note([AttemptReport(*key, fence, end=end)])
        self._news()

    def report_again(self, keys: Iterable[Key]) -> None:
        self._unreported.update(dict.fromkeys(key for key in keys if key in self._reports))

    def forget(self, key: Key) -> None:
        self._reports.pop(key, None)
        self._orders.pop(key, None)
        self._unreported.pop(key, None)
        self._told.discard(key)

    def all(self) -> list[AttemptReport]:
        return list(self._reports.values())

    def for_joining(self) -> list[AttemptReport]:
        """Return all attempts; one whose output may not have been sent counts as running."""
        return [
            replace(report, state="running", end=None)
            if report.state == "ended" and report.key not in self._told
            else report
            for report in self._reports.values()
        ]

    def running(self) -> list[AttemptReport]:
        return [report for report in self._reports.values() if report.state == "running"]

    def fences(self) -> list[AllocationId]:
        """Return the allocations for which anything runs."""
        return sorted({report.fence for report in self.running() if report.fence is not None})

    def unreported(self, most: int = 1000) -> list[AttemptReport]:
        return [self._reports[key] for key in list(self._unreported)[:most]]

    def reported(self, reports: Iterable[AttemptReport]) -> None:
        """Take note that the controller has got these; later news of them stay unreported."""
        for report in reports:
            if self._reports.get(report.key) is report:
                self._unreported.pop(report.key, None)
                if report.state == "ended":
                    self._told.add(report.key)
