"""Reporting calls to the controller, in groups, from a thread of its own.

No call waits for this. What began and ended between two reports is told once; what is still open is
told as it stands, and again when it ends. While the controller is away reports are kept, as many as
there is room for, and sent when it is back: telling something twice does no harm.
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
from gridhand.library.callnotes import (
    MOST_KEPT,
    Note,
    Notes,
    Said,
    alike,
    named,
    said_of,
    short,
    slot_job,
)

if TYPE_CHECKING:
    from gridhand.library.pool import Pool
    from gridhand.library.remote import Remote
    from gridhand.library.session import Session
    from gridhand.library.shapes import Call, Shape

_EVERY_S = 0.2
_LATER_S = 1.0  # after a report that could not be sent
_SETTLED_S = 0.5  # what is open for so long may be so for longer, and is told
_TIMEOUT_S = 5.0
_CLOSING_S = 2.0
_MOST_ENDED, _MOST_OPEN = 2000, 500  # in a report
_MOST_LOOKED_AT = 20_000  # of those that wait

_AWAY = (ControllerUnavailable, GridClosed, StoreFenced, StoreUnavailable)

_log = logging.getLogger(__name__)


class CallReport:
    """The reporter of one pool, whose calls are one run."""

    def __init__(self, pool: Pool, remote: Remote, owner: str) -> None:
        self.run = os.urandom(6).hex()
        self._woken = threading.Event()
        self.notes = Notes(self._woken.set)
        self._pool = pool
        self._remote = remote
        self._owner = owner
        # A client of its own: others may wait longer for an answer than this may.
        address = remote.client(None).address
        self._client = Client(address, owner=owner, timeout_s=_TIMEOUT_S)
        self._kept: deque[Any] = deque()  # notes of what ended, as `Note`
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
        """For the next turn; if there is nothing to tell, for the next call before that."""
        notes = self.notes
        notes.asleep = True
        if not (notes.open or notes.ended or self._kept):
            self._woken.wait()
        notes.asleep = False
        self._woken.clear()
        if not self._closed:
            self._woken.wait(_EVERY_S if told else _LATER_S)

    def _report(self) -> bool:
        """Whether all that is to be told was told."""
        try:
            self._collect()
            return self._send(self._open_ones())
        except _AWAY:
            return False
        except Exception:
            _log.warning("calls cannot be reported", exc_info=True)
            return False

    def _collect(self) -> None:
        """Take the notes, with errors as texts, and keep no more than there is room for."""
        ended, kept = self.notes.ended, self._kept
        if len(ended) == ended.maxlen:  # so the oldest may have gone before anybody took them
            lost = max(0, self.notes.count - self._taken - len(ended))
            self._taken, self._dropped = self._taken + lost, self._dropped + lost
        while ended:
            note = ended.popleft()
            kept.append(note if note[-1] is None else (*note[:-1], short(note[-1])))
            self._taken += 1
        while len(kept) > MOST_KEPT:
            kept.popleft()
            self._dropped += 1

    def _open_ones(self) -> list[tuple[Call, Note]]:
        """Calls that are open for a while, of which there is something new to tell."""
        running, awaited = self._pool.standing()
        calls = self.notes.open
        settled = time.monotonic() - _SETTLED_S
        found: list[tuple[Call, Note]] = []
        stopped: list[Call] = []
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
                note = Note(call.number, said, None, call.submitted, begun, None, "", None)
                found.append((call, note))
        self._pool.forget(stopped)
        return found

    # ---- sending

    def _send(self, open_ones: list[tuple[Call, Note]]) -> bool:
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
            _log.warning("%d calls cannot be reported: %s", len(notes), error)  # nor ever will

    def _session(self) -> Session:
        """The session that the calls end with. It comes back by itself; none is started here."""
        session = self._remote.session(self._owner)
        if session.id is None and self._client.look() is None:
            raise ControllerUnavailable("no controller is there now")
        session.report_on(self.run)
        return session

    def _tell_dropped(self, left: int) -> None:
        if count := self._dropped + left:
            _log.warning("%d calls that ended are not in the history: nobody took them", count)
            self._dropped = 0


def _standing(call: Call, runs: bool, awaited: Mapping[Shape, str | None]) -> Said:
    """Where it runs, or which slot it waits for."""
    worker = call.worker
    if runs:
        return said_of(call.name, "running", worker)
    job = awaited.get(call.shape) if worker is None else slot_job(worker)
    return Said(named(call.name), "queued", job=job)
