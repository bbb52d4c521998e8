"""The starter: the parent of all commands on a node.

It starts commands, waits for them, and writes both down in its journal. It has no network, no
threads and nothing but the standard library, because it must outlive everything else on the node:
when it dies, nobody can say any more how its children ended.

    python -E -s -m gridhand.agent.starter FOLDER [--grace SECONDS] [--detach]

In each turn of its loop it carries out all requests that have arrived, puts the journal on the
disk once, and only then answers. `protocol.py` has the requests.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import traceback

from gridhand.agent.starter import connection as wire
from gridhand.agent.starter.admission import Admission
from gridhand.agent.starter.attempts import Attempts, StartedAttempt
from gridhand.agent.starter.command_files import StartFailed
from gridhand.agent.starter.connection import Connection
from gridhand.agent.starter.fence_queue import FenceQueue
from gridhand.agent.starter.journal import Journal
from gridhand.agent.starter.message_fields import LeaderEnd, StarterEvent, StarterOrder
from gridhand.agent.starter.process_trees import ProcessTrees, TreeKiller, limit_mark_of
from gridhand.agent.starter.protocol import Protocol
from gridhand.agent.starter.spawner import Spawner
from gridhand.agent.starter.start_markers import StartMarkers
from gridhand.agent.starter.survivors import find_unknown_survivors, read_mark, write_mark
from gridhand.agent.starter.user_starts import UserStart, UserStarts
from gridhand.posix import boot_clock, procfs
from gridhand.posix.daemon import LOG
from gridhand.posix.limit_mark import limit_marked
from gridhand.posix.log_file import rotate_log
from gridhand.posix.socket_file import CHECK_S

_MOST_CLIENTS = 256
_EVENT_ATTEMPTS = 500  # in one event
_RETRY_S = 0.25
_TOGETHER_MS = 5  # ends are collected for so long, if the next commands need not wait for that
_LASTING_MS = 20  # an attempt that began by itself is reported only if it runs for so long
_COMPACT_BYTES = 16 << 10  # a smaller journal is not compacted
_ATTEMPT_BYTES = 4000  # nor one with less for each attempt: several times what its lines take


class Starter:
    """The loop of the process, and the state that it keeps from one turn to the next."""

    def __init__(self, folder_fd: int, grace_s: float) -> None:
        self._folder_fd = folder_fd
        self._grace_ms = grace_s * 1000
        self.journal = Journal(f"/proc/self/fd/{folder_fd}")
        self.attempts = Attempts(procfs.boot_id())
        self.trees = ProcessTrees(self.attempts)
        self.spawner = Spawner(folder_fd)
        self.markers = StartMarkers(folder_fd)
        self.hunts = TreeKiller(self.attempts)
        self.turns = FenceQueue(self.trees)
        self.connections: set[Connection] = set()
        self.trouble = ""  # why the journal cannot be written
        self.quitting = False
        self._compact_bytes = _COMPACT_BYTES
        self._unpushed: list[StartedAttempt] = []
        self._begun: list[StartedAttempt] = []  # by themselves, as their turn came
        self._served = False  # whether somebody waits for an answer in this turn
        self._told_ms = 0
        self._idle_since_ms = boot_clock.boot_ms()
        self._recover()
        self._protocol = Protocol(self)
        self._selector = selectors.DefaultSelector()
        self._user_starts = UserStarts(self._selector)
        self._signals = _signal_pipe()
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._admission = Admission(
            folder_fd, lambda: self.attempts.mark, lambda: self.attempts.running
        )
        self._socket_file = wire.listen(folder_fd)
        self._selector.register(self._socket_file.listening, selectors.EVENT_READ)
        self._checked_ms = boot_clock.boot_ms()

    def _recover(self) -> None:
        """Replay the journal, and end what an earlier starter did not see the end of."""
        damaged = sum(not self.attempts.replay(record) for record in self.journal.read())
        self.journal.damaged += damaged
        kept = read_mark(self._folder_fd)
        if not self.attempts.mark:
            self.attempts.mark = kept or os.urandom(8).hex()
            self.journal.append(self.attempts.mark_record())
        if kept != self.attempts.mark:
            write_mark(self._folder_fd, self.attempts.mark)
        survivors = find_unknown_survivors(self.attempts) if kept else []
        for attempt in [*self.attempts.lose(self.markers.has), *survivors]:
            self.note_end(attempt)
        self.commit()

    def run(self) -> None:
        """Serve until nothing has run and nobody was connected for the grace, or until `quit`."""
        while not self._finished():
            try:
                self._turn()
            except Exception:  # a bug of ours; the children still need their parent
                traceback.print_exc()
                select.select([], [], [], 0.05)
        self._socket_file.close()
        for connection in list(self.connections):
            self._drop(connection)
        if not self.attempts.known:
            with contextlib.suppress(OSError):
                self.journal.rewrite(self.attempts.records())

    def _turn(self) -> None:
        for key, mask in self._selector.select(self._wait_s()):
            if isinstance(key.data, Connection):
                self._served = True
                if mask & selectors.EVENT_READ:
                    self._serve(key.data)
            elif key.fileobj is self._socket_file.listening:
                self._accept()
            elif isinstance(key.data, UserStart):
                self._user_starts.read(key.data)
            else:
                os.read(self._signals, 4096)
        if boot_clock.boot_ms() - self._checked_ms >= CHECK_S * 1000:
            self._check_files()
        self._reap()
        self._begin_due()
        self.hunts.step()
        if self._may_tell_later() and self._write():
            return
        self.commit()
        self._push()
        self._send()
        self._served, self._told_ms = False, boot_clock.boot_ms()

    def _may_tell_later(self) -> bool:
        """Return whether nobody waits for the ends: the next attempts have begun already."""
        if self._served or self.hunts or self.trouble or not self.turns:
            return False
        return boot_clock.boot_ms() - self._told_ms < _TOGETHER_MS

    def _write(self) -> bool:
        """Write the journal, so that it outlives this process; return whether that worked."""
        try:
            self.journal.write()
        except OSError as error:
            self.trouble = error.strerror or str(error)
        return not self.trouble

    def _wait_s(self) -> float:
        """Return for how long to wait for events."""
        waits = [CHECK_S, *([self.hunts.wait_s()] if self.hunts else [])]
        if self.trouble:
            waits.append(_RETRY_S)
        if (self._unpushed or self._begun) and not self.trouble:
            pause_ms = _TOGETHER_MS if self._unpushed else _LASTING_MS
            waits.append(max(0, pause_ms - (boot_clock.boot_ms() - self._told_ms)) / 1000)
        if (pause_s := self.turns.wait_s()) is not None:
            waits.append(pause_s)
        if not self.attempts.running and not self.connections:
            idle_ms = boot_clock.boot_ms() - self._idle_since_ms
            waits.append(max(0.0, self._grace_ms - idle_ms) / 1000 + 0.001)
        return min(waits)

    def _finished(self) -> bool:
        if self.quitting:
            return True  # the request was answered at the end of that turn
        now_ms = boot_clock.boot_ms()
        if self.attempts.running or self.connections or self.hunts or self._unpushed:
            self._idle_since_ms = now_ms
        return now_ms - self._idle_since_ms >= self._grace_ms

    def _check_files(self) -> None:
        """Put back what was removed, without which no agent finds this starter; bound the log."""
        self._checked_ms = boot_clock.boot_ms()
        self._admission.put_back()
        rotate_log(LOG)  # in the current folder
        if self._socket_file.is_in_place():
            return
        removed = self._socket_file
        with contextlib.suppress(OSError):  # something is in the way; the next look tries again
            self._socket_file = wire.listen(self._folder_fd)
            self._selector.register(self._socket_file.listening, selectors.EVENT_READ)
            self._selector.unregister(removed.listening)
            removed.close()

    def _accept(self) -> None:
        try:
            connected, _ = self._socket_file.listening.accept()
        except OSError:
            return
        connection = Connection(connected)
        if len(self.connections) >= _MOST_CLIENTS or not self._admission.trusts(connected):
            connected.close()
            return
        self.connections.add(connection)
        self._selector.register(connected, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection) -> None:
        try:
            for line in connection.receive():
                if connection.admitted:
                    self._protocol.answer(connection, line)
                elif self._admission.opens(line):
                    connection.admitted = True
                else:
                    raise EOFError
        except EOFError:
            self._drop(connection)
        except wire.TooLong:
            connection.tell({"id": None, "error": "too_long", "message": "the line is too long"})

    def _drop(self, connection: Connection) -> None:
        if connection in self.connections:
            self.connections.discard(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def _reap(self) -> None:
        """Reap every child that has ended, including orphans that jobs have left to us."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            attempt = self.attempts.running.pop(pid, None)
            if attempt is None:
                continue
            if (failure := self._user_starts.take_failure(pid)) is not None:
                attempt.finish(self._failed_start(failure))
            else:
                attempt.exited(status, usage)
            self.note_end(attempt)

    def _begin_due(self) -> None:
        """Begin the attempts whose turn has come; one that fails at once lets the next begin."""
        while not self.trouble and (due := self.turns.take_due()):
            for attempt, _ in due:
                attempt.begin()
                self.journal.append(attempt.intent())
            self._write()
            with self.spawner:
                for attempt, order in due:
                    self._begin(attempt, order)

    def _begin(self, attempt: StartedAttempt, order: StarterOrder) -> None:
        if self.trouble:  # nobody would know later that it was begun
            message = f"the journal cannot be written: {self.trouble}"
            attempt.finish({"reason": "returned", "message": message, "shortage": message})
            self.note_end(attempt)
        else:
            self.spawn(attempt, order)
            self._begun.append(attempt)

    def spawn(self, attempt: StartedAttempt, order: StarterOrder) -> None:
        """Start the command of an attempt whose intent is in the journal."""
        try:
            if not self._mark(attempt):
                return
            with limit_marked(limit_mark_of(self.attempts.mark, *attempt.key)):
                pid, attempt.doomed, failure = self.spawner.spawn(order)
        except Exception as error:  # whatever it is, the attempt must have an end
            attempt.finish(self._failed_start(error))
            self.note_end(attempt)
            return
        if failure is not None:
            self._user_starts.add(pid, failure)
        # It has not been reaped yet, so /proc has it even if it has ended.
        leader = procfs.read_process(pid)
        attempt.pid, attempt.start = pid, leader.start if leader else 0
        self.attempts.running[pid] = attempt
        self.journal.append(attempt.started())

    def _mark(self, attempt: StartedAttempt) -> bool:
        """Mark an attempt as started; if it was started before, end it and return False."""
        try:
            if self.markers.add(attempt.key):
                return True
        except OSError as error:
            raise StartFailed(
                f"cannot mark it as started: {error.strerror}", shortage=True
            ) from error
        message = "exit status unknown: the starter has lost its journal"
        attempt.finish({"reason": "lost", "message": message})
        self.note_end(attempt)
        return False

    def _failed_start(self, error: Exception) -> LeaderEnd:
        """Return the end of an attempt without a process.

        It is returned if no command at all could be started: then the node is at fault.
        """
        message = _start_message(error)
        if isinstance(error, StartFailed) and error.shortage and (why := self.spawner.probe()):
            return {"reason": "returned", "message": message, "shortage": why}
        end: LeaderEnd = {"reason": "start_failed", "message": message}
        if isinstance(error, StartFailed) and error.code is not None:
            end["code"] = error.code
        return end

    def withdraw(self, attempt: StartedAttempt) -> bool:
        """End an attempt that waits for its turn; return whether it did."""
        if not attempt.waiting or not self.turns.withdraw(attempt):
            return False
        attempt.finish({"reason": "returned", "message": "its turn did not come"})
        self.note_end(attempt)
        return True

    def note_end(self, attempt: StartedAttempt) -> None:
        self.journal.append(attempt.ended())
        self._unpushed.append(attempt)

    def commit(self) -> None:
        """Put the journal on the disk, or keep its lines and try again later."""
        try:
            if self.journal.must_rewrite:
                self.journal.rewrite(self.attempts.records())
            self.journal.sync()
        except OSError as error:
            self.trouble = error.strerror or str(error)
            return
        self.trouble = ""
        for attempt in self._unpushed:
            attempt.written = True
        self._compact()

    def _compact(self) -> None:
        size, known = self.journal.size, len(self.attempts.known)
        if size < self._compact_bytes or size < _ATTEMPT_BYTES * known:
            return
        with contextlib.suppress(OSError):  # a full disk; the file is as good as it was
            self.journal.rewrite(self.attempts.records())
        self._compact_bytes = max(_COMPACT_BYTES, 2 * self.journal.size)

    def _push(self) -> None:
        """Tell the watchers of attempts that have begun, and of ends that are on the disk."""
        if self.trouble or not (self._unpushed or self._begun):
            return
        ended, self._unpushed = self._unpushed, []
        begun = self._take_lasting()
        current = self.attempts.epoch
        watchers = [each for each in self.connections if each.watching and each.epoch == current]
        strays = bool(watchers) and self.trees.strays()
        events: list[StarterEvent] = []
        if begun:
            events.append({"event": "begun", "attempts": [one.report() for one in begun]})
        for first in range(0, len(ended) if watchers else 0, _EVENT_ATTEMPTS):
            reports = [one.report() for one in ended[first : first + _EVENT_ATTEMPTS]]
            events.append({"event": "ended", "attempts": reports, "strays": strays})
        for connection in watchers:
            for event in events:
                connection.tell(event)

    def _take_lasting(self) -> list[StartedAttempt]:
        """Remove and return those that began by themselves and have run for a while.

        Most attempts are over by then, and are never reported to have begun.
        """
        running = [attempt for attempt in self._begun if attempt.end is None]
        since_ms = boot_clock.boot_ms() - _LASTING_MS
        lasting = [one for one in running if one.begun["begun_boot_ms"] <= since_ms]
        self._begun = [one for one in running if one not in lasting]
        return lasting

    def _send(self) -> None:
        for connection in list(self.connections):
            connection.release()
            if not connection.send():
                self._drop(connection)
                continue
            events = selectors.EVENT_READ
            if connection.unsent:
                events |= selectors.EVENT_WRITE
            if self._selector.get_key(connection.socket).events != events:
                self._selector.modify(connection.socket, events, connection)


def _signal_pipe() -> int:
    """Return a pipe that is readable when a child has ended.

    Signals that end other programs do nothing to this one.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        # Handled rather than ignored: every job would inherit an ignored signal.
        signal.signal(signum, lambda *_: None)
    return reading


def _start_message(error: Exception) -> str:
    if isinstance(error, StartFailed):
        return str(error)
    traceback.print_exc()
    return f"cannot start what was ordered: {error!r}"
