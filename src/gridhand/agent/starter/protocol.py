"""The requests that the starter answers. A request is a line of JSON, and so is each answer.

    request                                         answer, besides `id`
    {"do": "hello", "epoch": n | null}              version, pid, start, boot_id, epoch, mark, …
    {"do": "start", "jobs": [order, …]}             attempts: what is known of each
    {"do": "stop", "job", "attempt", "signal",      attempt, sent
        "to": "group" | "leader"}
    {"do": "stop", "job", "attempt", "all": true}   attempt, killed, left: pids that would not die
    {"do": "list"}                                  running, ended (with survivors), trouble
    {"do": "return", "attempts": [[job, n], …]}     returned: how many had not begun, and will not
    {"do": "forget", "attempts": [[job, n], …]}     forgotten
    {"do": "watch"}                                 nothing; then events: begun, ended, strays
    {"do": "probe"}                                 shortage: why no command can be started now
    {"do": "quit"}                                  nothing; the starter ends, if no job runs

A job is recognized by `GRIDHAND_JOB_ID` in its environment, and by `GRIDHAND_ATTEMPT` if that is
set. What a killed starter left is looked for by name only where `GRIDHAND_STARTER` is its `mark`:
another starter of this machine may have a job of the same name.

The `id` of a request is repeated in its answer. An answer may have `error`, a code, and `message`
instead. A connection begins with a line that has the secret of the folder, and belongs to no job;
see `admission.py`. `hello` comes first. A hello with a lower epoch than the highest seen is
refused, and so is every request of a connection that has said a lower one; a hello without an epoch
joins the present one. Every request may be repeated. An order's `note` comes back with every report
of its attempt. `strays` is false if no process is left whose leader has ended. Of the attempts with
one fence one runs at a time: the others are `waiting`, and begin when those before them are over.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from gridhand import __version__
from gridhand.agent.starter import message_fields
from gridhand.agent.starter.attempts import StartedAttempt
from gridhand.agent.starter.connection import Connection
from gridhand.agent.starter.message_fields import (
    Malformed,
    Message,
    StarterGreeting,
    StarterListing,
    StarterOrder,
)
from gridhand.posix import procfs

if TYPE_CHECKING:
    from gridhand.agent.starter.starter import Starter

PROTOCOL = 1

Reply = Mapping[str, object]


class Refused(Exception):
    """A request was understood and is not carried out; `code` says why."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Protocol:
    """Answers the requests of all connections, with one method for each kind."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._attempts = starter.attempts
        self._self = procfs.read_process(os.getpid())
        self._handlers: dict[str, Callable[[Connection, Message], Reply | None]] = {
            "hello": self._hello,
            "start": self._start,
            "stop": self._stop,
            "list": self._list,
            "return": self._return,
            "forget": self._forget,
            "watch": self._watch,
            "probe": self._probe,
            "quit": self._quit,
        }

    def answer(self, connection: Connection, line: bytes) -> None:
        """Carry out one request, and queue its answer."""
        number = None
        try:
            message = message_fields.read_message(line)
            number = message.get("id")
            handler = self._handlers.get(message["do"])
            if handler is None:
                raise Malformed(f"there is no {message['do'][:40]!r} to do")
            if message["do"] != "hello":
                self._check_epoch(connection.epoch)
            reply = handler(connection, message)
        except Malformed as error:
            reply = {"error": "malformed", "message": str(error)}
        except Refused as error:
            reply = {"error": error.code, "message": str(error)}
        except Exception as error:  # a bug of ours; the children still need their parent
            traceback.print_exc()
            reply = {"error": "internal", "message": repr(error)}
        if reply is not None:
            connection.tell({"id": number, **reply})

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is None:
            raise Refused("no_hello", "say hello first")
        if epoch < self._attempts.epoch:
            raise Refused("stale_epoch", f"epoch {self._attempts.epoch} was here; {epoch} is over")

    def _hello(self, connection: Connection, message: Message) -> Reply:
        joins = message.get("epoch", -1) is None
        epoch = self._attempts.epoch if joins else message_fields.epoch_of(message)
        self._check_epoch(epoch)
        if epoch > self._attempts.epoch:
            self._attempts.epoch = epoch
            self._starter.journal.append({"do": "epoch", "epoch": epoch})
        connection.epoch = epoch
        greeting: StarterGreeting = {
            "version": __version__,
            "protocol": PROTOCOL,
            "boot_id": self._attempts.boot,
            "pid": os.getpid(),
            "start": self._self.start if self._self else None,
            "epoch": epoch,
            "mark": self._attempts.mark,
            "trouble": self._starter.trouble,
            "damaged_lines": self._starter.journal.damaged,
        }
        return greeting

    def _start(self, _: Connection, message: Message) -> Reply:
        """Start all orders that are new; all are read before any is carried out."""
        if not isinstance(message.get("jobs"), list):
            raise Malformed("jobs: give a list")
        orders = [StarterOrder.decode(raw) for raw in message["jobs"]]
        new: list[tuple[StartedAttempt, StarterOrder]] = []
        for order in orders:
            if (order.job, order.attempt) not in self._attempts.known:
                uid = None if order.user is None else order.user["uid"]
                attempt = self._attempts.add(
                    order.job, order.attempt, order.fence, order.cgroups, order.note, uid
                )
                self._starter.turns.add(attempt, order)
                new.append((attempt, order))
        refusal = self._write_intents([attempt for attempt, _ in new])
        if not refusal and new:
            with self._starter.spawner:
                for attempt, order in new:
                    if not attempt.waiting:
                        self._starter.spawn(attempt, order)
        if any(attempt.end is not None for attempt, _ in new):
            self._starter.commit()  # so that their end may be told
        return {"attempts": [self._report(order, refusal) for order in orders]}

    def _report(self, order: StarterOrder, refusal: str) -> Reply:
        known = self._attempts.known.get((order.job, order.attempt))
        if known is not None:
            return known.report()
        name = {"job": order.job, "attempt": order.attempt, "fence": order.fence}
        return {**name, "state": "refused", "reason": "journal", "message": refusal}

    def _write_intents(self, new: list[StartedAttempt]) -> str:
        """Write down what is about to be started; return why it is not started, if it is not."""
        journal = self._starter.journal
        for attempt in new:
            journal.append(attempt.intent())
        refusal = self._starter.trouble
        if not refusal:
            try:
                journal.write()
            except OSError as error:
                refusal = self._starter.trouble = error.strerror or str(error)
        if refusal and new:
            journal.take_back(len(new))
            for attempt in reversed(new):
                del self._attempts.known[attempt.key]
                self._starter.turns.refuse(attempt)
        return f"the starter cannot write its journal: {refusal}" if refusal else ""

    def _stop(self, connection: Connection, message: Message) -> Reply | None:
        attempt = self._attempts.known.get(
            (message_fields.job_of(message), message_fields.attempt_of(message))
        )
        signum, to = message_fields.signal_of(message), message_fields.receiver_of(message)
        everything = message_fields.flag(message, "all")
        if attempt is None:
            raise Refused("unknown_attempt", "nothing is known of this attempt")
        if everything:
            self._starter.withdraw(attempt)
            self._hunt(connection, message.get("id"), attempt)
            return None
        sent = attempt.boot == self._attempts.boot and _signal(attempt, signum, to)
        return {"sent": sent, "attempt": attempt.report()}

    def _hunt(self, connection: Connection, number: object, attempt: StartedAttempt) -> None:
        """Kill all processes of the attempt, and answer when that is done."""

        def done(killed: int, left: list[int]) -> None:
            reply = {"id": number, "killed": killed, "left": left, "attempt": attempt.report()}
            connection.tell(reply)

        self._starter.hunts.add(attempt, done)

    def _list(self, *_: object) -> Reply:
        known, trees = self._attempts.known.values(), self._starter.trees
        ended = [attempt for attempt in known if attempt.end is not None]
        alive = trees.alive() if ended and trees.strays() else {}
        listing: StarterListing = {
            "running": [attempt.report() for attempt in known if attempt.end is None],
            "ended": [
                {**attempt.report(), "survivors": [one.pid for one in alive.get(attempt.key, ())]}
                for attempt in ended
            ],
            "trouble": self._starter.trouble,
        }
        return listing

    def _return(self, _: Connection, message: Message) -> Reply:
        known = map(self._attempts.known.get, message_fields.keys(message.get("attempts")))
        returned = [attempt for attempt in known if attempt and self._starter.withdraw(attempt)]
        return {"returned": len(returned)}

    def _forget(self, _: Connection, message: Message) -> Reply:
        gone = self._attempts.forget(message_fields.keys(message.get("attempts")))
        for attempt in gone:
            self._starter.turns.forget(attempt)
            self._starter.markers.remove(attempt.key)
        if gone:
            keys = [attempt.key for attempt in gone]
            self._starter.journal.append({"do": "forget", "attempts": keys})
        return {"forgotten": len(gone)}

    def _watch(self, connection: Connection, _: Message) -> Reply:
        connection.watching = True
        return {}

    def _probe(self, *_: object) -> Reply:
        return {"shortage": self._starter.trouble or self._starter.spawner.probe()}

    def _quit(self, *_: object) -> Reply:
        if self._attempts.running or self._starter.turns:
            raise Refused("busy", f"{len(self._attempts.running)} jobs run")
        self._starter.quitting = True
        return {}


def _signal(attempt: StartedAttempt, signum: int, to: str) -> bool:
    """Signal a living leader or its group; return False if another process has its pid now."""
    leader = None if attempt.pid is None else procfs.read_process(attempt.pid)
    if leader is None or leader.start != attempt.start:
        return False
    if to == "leader":
        return procfs.send_signal(leader.identity, signum)
    try:
        os.killpg(leader.pid, signum)
    except ProcessLookupError:
        return False
    return True
