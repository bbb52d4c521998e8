"""The starter: the parent of all commands on a node.

It starts what it is told, waits for what it has started, and writes down both. It has no network,
no threads and nothing but the standard library, because it must outlive everything else here:
when it dies, nobody can say any more how its children ended.

    python -E -s -m gridhand.agent.starter FOLDER [--grace SECONDS] [--detach]

In each turn of its loop it does all that has come in, puts the journal on the disk once, and only
then tells anybody. `protocol.py` has the messages.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import signal
import sys
import traceback

from gridhand.agent import processes, wire
from gridhand.agent.attempts import Attempt, Attempts
from gridhand.agent.daemon import become_subreaper, detach, lock
from gridhand.agent.families import Families, Hunts
from gridhand.agent.journal import Journal
from gridhand.agent.orders import Order
from gridhand.agent.protocol import Protocol
from gridhand.agent.spawning import Spawner, StartFailed
from gridhand.agent.turns import Turns
from gridhand.agent.wire import Connection

_MOST_CLIENTS = 256
_EVENT_ATTEMPTS = 500  # in one pushed line
_RETRY_S = 0.25
_TOGETHER_MS = 5  # ends are told together, where the next commands need not wait for that
_LASTING_MS = 20  # who begins by himself is told of once that is worth a message
_WORTH_COMPACTING = 16 << 10
_OF_USE = 4000  # bytes for each attempt: several times what its lines take


class Starter:
    """The loop, and what it keeps from one turn to the next."""

    def __init__(self, folder_fd: int, grace_s: float) -> None:
        self._folder_fd = folder_fd
        self._grace_ms = grace_s * 1000
        self.journal = Journal(f"/proc/self/fd/{folder_fd}")
        self.attempts = Attempts(processes.boot_id())
        self.families = Families(self.attempts)
        self.spawner = Spawner(folder_fd)
        self.hunts = Hunts(self.attempts)
        self.turns = Turns(self.families)
        self.connections: set[Connection] = set()
        self.trouble = ""  # why the journal cannot be written
        self.quitting = False
        self._worth_compacting = _WORTH_COMPACTING
        self._unpushed: list[Attempt] = []
        self._begun: list[Attempt] = []  # by themselves, as their turn came
        self._served = False  # whether somebody is to be answered in this turn
        self._told_ms = 0
        self._idle_since_ms = processes.boot_ms()
        self._recover()
        self._protocol = Protocol(self)
        self._selector = selectors.DefaultSelector()
        self._signals = _signal_pipe()
        self._selector.register(self._signals, selectors.EVENT_READ)
        self._listening = wire.listen(folder_fd)
        self._selector.register(self._listening, selectors.EVENT_READ)

    def _recover(self) -> None:
        damaged = sum(not self.attempts.replay(record) for record in self.journal.read())
        self.journal.damaged += damaged
        if not self.attempts.mark:
            self.attempts.mark = os.urandom(8).hex()
            self.journal.append(self.attempts.marking())
        for attempt in self.attempts.lose():
            self.note_end(attempt)
        self.commit()

    def run(self) -> None:
        """Until it is idle for long, or told to quit."""
        while not self._finished():
            try:
                self._turn()
            except Exception:  # whatever it is, the children need their parent
                traceback.print_exc()
                select.select([], [], [], 0.05)
        wire.unlisten(self._listening, self._folder_fd)
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
            elif key.fileobj is self._listening:
                self._accept()
            else:
                os.read(self._signals, 4096)
        self._reap()
        self._take_turns()
        self.hunts.step()
        if self._may_tell_later() and self._write():
            return
        self.commit()
        self._push()
        self._send()
        self._served, self._told_ms = False, processes.boot_ms()

    def _may_tell_later(self) -> bool:
        """Whether nobody waits for what there is to tell: those whose turn it was have begun."""
        if self._served or self.hunts or self.trouble or not self.turns:
            return False
        return processes.boot_ms() - self._told_ms < _TOGETHER_MS

    def _write(self) -> bool:
        """Have what has happened outlive this process, if not the machine."""
        try:
            self.journal.write()
        except OSError as error:
            self.trouble = error.strerror or str(error)
        return not self.trouble

    def _wait_s(self) -> float | None:
        waits = [self.hunts.wait_s()] if self.hunts else []
        if self.trouble:
            waits.append(_RETRY_S)
        if (self._unpushed or self._begun) and not self.trouble:
            pause_ms = _TOGETHER_MS if self._unpushed else _LASTING_MS
            waits.append(max(0, pause_ms - (processes.boot_ms() - self._told_ms)) / 1000)
        if (pause_s := self.turns.wait_s()) is not None:
            waits.append(pause_s)
        if not self.attempts.running and not self.connections:
            idle_ms = processes.boot_ms() - self._idle_since_ms
            waits.append(max(0.0, self._grace_ms - idle_ms) / 1000 + 0.001)
        return min(waits, default=None)

    def _finished(self) -> bool:
        if self.quitting:
            return True  # the answer was sent at the end of that turn
        now_ms = processes.boot_ms()
        if self.attempts.running or self.connections or self.hunts or self._unpushed:
            self._idle_since_ms = now_ms
        return now_ms - self._idle_since_ms >= self._grace_ms

    def _accept(self) -> None:
        try:
            connected, _ = self._listening.accept()
        except OSError:
            return
        connection = Connection(connected)
        if len(self.connections) >= _MOST_CLIENTS or not connection.ours():
            connected.close()
            return
        self.connections.add(connection)
        self._selector.register(connected, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection) -> None:
        try:
            for line in connection.receive():
                self._protocol.answer(connection, line)
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
        """Take note of every child that has ended; of those that jobs have left, too."""
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            attempt = self.attempts.running.pop(pid, None)
            if attempt is not None:
                attempt.exited(status, usage)
                self.note_end(attempt)

    def _take_turns(self) -> None:
        """Begin those whose turn has come; one that fails at once makes room for the next."""
        while not self.trouble and (due := self.turns.due()):
            for attempt, _ in due:
                attempt.begin()
                self.journal.append(attempt.intent())
            self._write()
            with self.spawner:
                for attempt, order in due:
                    self._begin(attempt, order)

    def _begin(self, attempt: Attempt, order: Order) -> None:
        if self.trouble:  # nobody would know later that it was begun
            attempt.finish("returned", message=f"the journal cannot be written: {self.trouble}")
            self.note_end(attempt)
        else:
            self.spawn(attempt, order)
            self._begun.append(attempt)

    def spawn(self, attempt: Attempt, order: Order) -> None:
        """Start its command. That it is about to has been written down."""
        try:
            pid, attempt.doomed = self.spawner.spawn(order)
        except StartFailed as error:
            code = {} if error.code is None else {"code": error.code}
            attempt.finish("start_failed", message=str(error), **code)
            self.note_end(attempt)
            return
        # It cannot have been reaped yet, so it is there even when it has ended.
        found = processes.process(pid)
        attempt.pid, attempt.start = pid, found.start if found else 0
        self.attempts.running[pid] = attempt
        self.journal.append(attempt.started())

    def give_up(self, attempt: Attempt) -> bool:
        """End one that waits for its turn; whether it did."""
        if not attempt.waiting or not self.turns.give_up(attempt):
            return False
        attempt.finish("returned", message="its turn did not come")
        self.note_end(attempt)
        return True

    def note_end(self, attempt: Attempt) -> None:
        self.journal.append(attempt.ended())
        self._unpushed.append(attempt)

    def commit(self) -> None:
        """Put what has happened on the disk, or keep it and try again."""
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
        if size < self._worth_compacting or size < _OF_USE * known:
            return
        with contextlib.suppress(OSError):  # a full disk; the file is as good as it was
            self.journal.rewrite(self.attempts.records())
        self._worth_compacting = max(_WORTH_COMPACTING, 2 * self.journal.size)

    def _push(self) -> None:
        """Tell the watchers of the ends that are on the disk."""
        if self.trouble or not (self._unpushed or self._begun):
            return
        ended, self._unpushed = self._unpushed, []
        begun = self._lasting()
        current = self.attempts.epoch
        watchers = [each for each in self.connections if each.watching and each.epoch == current]
        strays = bool(watchers) and self.families.strays()
        if begun:
            for connection in watchers:
                connection.tell({"event": "begun", "attempts": [one.told() for one in begun]})
        for first in range(0, len(ended) if watchers else 0, _EVENT_ATTEMPTS):
            told = [one.told() for one in ended[first : first + _EVENT_ATTEMPTS]]
            event = {"event": "ended", "attempts": told, "strays": strays}
            for connection in watchers:
                connection.tell(event)

    def _lasting(self) -> list[Attempt]:
        """Those that have begun by themselves and run for a while; most are over by then."""
        running = [one for one in self._begun if one.end is None]
        since_ms = processes.boot_ms() - _LASTING_MS
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
    """Readable when a child has ended. Signals that end other programs do nothing to this one."""
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    for signum in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
        # Handled rather than ignored: what is ignored would be ignored by every job, too.
        signal.signal(signum, lambda *_: None)
    return reading


def main(arguments: list[str]) -> int:
    """Run in the given folder; exits with 3 when another starter has it."""
    folder, grace_s, detached = _options(arguments)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    folder_fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    if os.fstat(folder_fd).st_mode & 0o077 or os.fstat(folder_fd).st_uid != os.geteuid():
        raise SystemExit(f"{folder} must be yours, and closed to others (mode 0700)")
    os.fchdir(folder_fd)
    ready = detach() if detached else None
    locked = lock(folder_fd)
    if locked is None:
        print("another starter has this folder", file=sys.stderr)
        return 3
    become_subreaper()
    starter = Starter(folder_fd, grace_s)
    if ready is not None:
        ready()
    starter.run()
    return 0


def _options(arguments: list[str]) -> tuple[str, float, bool]:
    rest = [one for one in arguments if one != "--detach"]
    match rest:
        case [folder]:
            grace_s = 60.0
        case [folder, "--grace", seconds]:
            grace_s = float(seconds)
        case _:
            raise SystemExit("usage: gridhand.agent.starter FOLDER [--grace SECONDS] [--detach]")
    return folder, grace_s, len(rest) < len(arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
