"""Reports calls to the controller, in groups, from a thread of its own.

No call waits for this. A call that began and ended between two reports is reported once; one that
is still open is reported as it stands, and again when it ends. While the controller is away,
reports are kept, up to a limit, and sent when it is back: reporting something twice does no harm.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any

from gridhand.client.client import Client
from gridhand.core.errors import (
    ControllerUnavailable,
    GridClosed,
    GridError,
    InvalidInput,
    StoreFenced,
    StoreUnavailable,
)
from gridhand.library.functions.future_state import mark_running
from gridhand.library.pool.call_log import (
    MOST_KEPT,
    CallLogEntry,
    CallSummary,
    Notes,
    alike,
    named,
    said_of,
    short,
    slot_job,
)

if TYPE_CHECKING:
    from gridhand.client.session import Session
    from gridhand.library.pool.shape import PendingCall, Shape
    from gridhand.library.pool.state import PoolState
    from gridhand.library.remote import Remote

_EVERY_S = 0.2
_LATER_S = 1.0  # after a report that could not be sent
_SETTLED_S = 0.5  # calls that are open for longer are reported before they end
_TIMEOUT_S = 5.0
_CLOSING_S = 2.0
_MOST_ENDED, _MOST_OPEN = 2000, 500  # in a report
_MOST_LOOKED_AT = 20_000  # waiting calls

_AWAY = (ControllerUnavailable, GridClosed, StoreFenced, StoreUnavailable)

_log = logging.getLogger(__name__)


class CallReport:
    """The reporter of one pool. All calls of a pool are one run."""

    def __init__(self, state: PoolState, remote: Remote, owner: str) -> None:
        self.run = os.urandom(6).hex()
        self._woken = threading.Event()
        self.notes = Notes(self._woken.set)
        self._state = state
        self._remote = remote
        self._owner = owner
        # A client of its own, with a shorter time-out than others have.
        address = remote.client(None).address
        self._client = Client(address, owner=owner, timeout_s=_TIMEOUT_S)
        self._kept: deque[Any] = deque()  # notes of what ended, as `CallLogEntry`
        self._taken = 0  # of all notes that were made, or gone before
        self._dropped = 0
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="gridhand-calls", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Send what is left, if the controller takes it within a moment."""
        self._closed = True
        self._woken.set()
        if self._thread is not threading.current_thread():
            self._thread.join(_CLOSING_S)

    # ---- the thread

    def _run(self) -> None:
        told = True
        while not self._closed:
            self._wait(told)
            told = self._report()
        deadline = time.monotonic() + _CLOSING_S
        while not (done := self._report()) and time.monotonic() < deadline:
            time.sleep(_EVERY_S)
        if done and not self.notes.open:
            with suppress(GridClosed):
                self._remote.session(self._owner).reported(self.run)
        self._tell_dropped(len(self._kept))
        self._client.close()

    def _wait(self, told: bool) -> None:
        """Wait for the next turn; if there is nothing to report, for the next call before that."""
        notes = self.notes
        notes.asleep = True
        if not (notes.open or notes.ended or self._kept):
            self._woken.wait()
        notes.asleep = False
        self._woken.clear()
        if not self._closed:
            self._woken.wait(_EVERY_S if told else _LATER_S)

    def _report(self) -> bool:
        """Send a report; return whether all of it was sent."""
        try:
            self._collect()
            return self._send(self._open_ones())
        except _AWAY:
            return False
        except Exception:
            _log.warning("calls cannot be reported", exc_info=True)
            return False

    def _collect(self) -> None:
        """Take over the log, with errors as texts, up to a limit."""
        ended, kept = self.notes.ended, self._kept
        if len(ended) == ended.maxlen:  # so the oldest entries may have been dropped before
            lost = max(0, self.notes.count - self._taken - len(ended))
            self._taken, self._dropped = self._taken + lost, self._dropped + lost
        while ended:
            note = ended.popleft()
            kept.append(note if note[-1] is None else (*note[:-1], short(note[-1])))
            self._taken += 1
        while len(kept) > MOST_KEPT:
            kept.popleft()
            self._dropped += 1

    def _open_ones(self) -> list[tuple[PendingCall, CallLogEntry]]:
        """Return calls that have been open for a while, and have changed since the last report."""
        with self._state.lock:
            running, awaited = self._state.standing()
        calls = self.notes.open
        settled = time.monotonic() - _SETTLED_S
        found: list[tuple[PendingCall, CallLogEntry]] = []
        stopped: list[PendingCall] = []
        waiting = list(calls.values())[:_MOST_LOOKED_AT]
        at_work = [call for number in running if (call := calls.get(number)) is not None]
        for call in (*at_work, *waiting):
            if call.submitted > settled or len(found) == _MOST_OPEN:
                continue
            if call.future.cancelled():
                stopped.append(call)
                continue
            begun = running.get(call.number)
            said = _standing(call, begun is not None, awaited)
            if said != call.told:
                call.told = said
                note = CallLogEntry(call.number, said, None, call.submitted, begun, None, "", None)
                found.append((call, note))
        with self._state.lock:
            for call in stopped:
                mark_running(call.future)  # notifies those who wait for it
                call.over()
        return found

    # ---- sending

    def _send(self, open_ones: list[tuple[PendingCall, CallLogEntry]]) -> bool:
        try:
            while self._kept or open_ones:
                some = list(islice(self._kept, _MOST_ENDED))
                self._post([*(note for _, note in open_ones), *some])
                open_ones = []
                for _ in some:
                    self._kept.popleft()
            self._tell_dropped(0)
            return True
        except BaseException:
            for call, _ in open_ones:
                call.told = None
            raise

    def _post(self, notes: list[Any]) -> None:
        session = self._session()
        id = session.ready()
        once = {note[0]: note for note in notes}
        told = alike(once.values(), time.time() - time.monotonic())
        try:
            self._client.report_calls({"session": id, "run": self.run, "calls": told})
        except _AWAY:
            raise
        except GridError as error:
            if isinstance(error, InvalidInput) and error.field == "session":
                session.lost(id)
                raise ControllerUnavailable(str(error)) from error
            _log.warning("%d calls cannot be reported: %s", len(notes), error)  # now or later

    def _session(self) -> Session:
        """Return the session that the calls end with. It reconnects itself; none begins here."""
        session = self._remote.session(self._owner)
        if session.id is None and self._client.probe() is None:
            raise ControllerUnavailable("no controller is there now")
        session.report_on(self.run)
        return session

    def _tell_dropped(self, left: int) -> None:
        if count := self._dropped + left:
            _log.warning("%d calls that ended are not in the history: nobody took them", count)
            self._dropped = 0


def _standing(call: PendingCall, runs: bool, awaited: Mapping[Shape, str | None]) -> CallSummary:
    """Return where the call runs, or which slot it waits for."""
    worker = call.worker
    if runs:
        return said_of(call.name, "running", worker)
    job = awaited.get(call.shape) if worker is None else slot_job(worker)
    return CallSummary(named(call.name), "queued", job=job)
