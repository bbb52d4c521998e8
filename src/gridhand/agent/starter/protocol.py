"""What the starter answers. Each message is a line of JSON, and so is each answer.

    asked                                           answered besides `id`
    {"do": "hello", "epoch": n | null}              version, pid, start, boot_id, epoch, mark, …
    {"do": "start", "jobs": [order, …]}             attempts: what is known of each
    {"do": "stop", "job", "attempt", "signal",      attempt, sent
        "to": "group" | "leader"}
    {"do": "stop", "job", "attempt", "all": true}   attempt, killed, left: pids that would not die
    {"do": "list"}                                  running, ended (with survivors), trouble
    {"do": "return", "attempts": [[job, n], …]}     returned: those that had not begun, and will not
    {"do": "forget", "attempts": [[job, n], …]}     forgotten
    {"do": "watch"}                                 nothing; then events: begun, ended, strays
    {"do": "quit"}                                  nothing; it ends, if no job runs

A job is known by `GRIDHAND_JOB_ID` in its environment, and `GRIDHAND_ATTEMPT` if that is there.
What a starter leaves that is killed is looked for by name only where `GRIDHAND_STARTER` is its
`mark`: another starter of this machine may have a job of the same name.

An `id` in the question is repeated in its answer. Instead of an answer there may be `error`, a
word, and `message`. `hello` comes first, and one with a lower epoch than was seen is refused, as
is everything from a connection that said a lower one before; one without an epoch joins whoever is
in charge. Everything may be asked again. An order's `note` is told back with all that is told of
its attempt. `strays` is false when no process is left whose leader has ended. Of the attempts with
one fence one runs at a time: the others are `waiting`, and begin when those before them are over.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gridhand import __version__
from gridhand.agent import orders, processes
from gridhand.agent.attempts import Attempt
from gridhand.agent.orders import Malformed, Order
from gridhand.agent.wire import Connection

if TYPE_CHECKING:
    from gridhand.agent.starter import Starter

Message = dict[str, Any]
PROTOCOL = 1


class Refused(Exception):
    """It was understood, and is not done."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Protocol:
    """One method for each thing that may be asked."""

    def __init__(self, starter: Starter) -> None:
        self._starter = starter
        self._attempts = starter.attempts
        self._self = processes.process(os.getpid())
        self._asked: dict[str, Callable[[Connection, Message], Message | None]] = {
            "hello": self._hello,
            "start": self._start,
            "stop": self._stop,
            "list": self._list,
            "return": self._return,
            "forget": self._forget,
            "watch": self._watch,
            "quit": self._quit,
        }

    def answer(self, connection: Connection, line: bytes) -> None:
        number = None
        try:
            message = orders.message(line)
            number = message.get("id")
            asked = self._asked.get(message["do"])
            if asked is None:
                raise Malformed(f"there is no {message['do'][:40]!r} to do")
            if message["do"] != "hello":
                self._check_epoch(connection.epoch)
            reply = asked(connection, message)
        except Malformed as error:
            reply = {"error": "malformed", "message": str(error)}
        except Refused as error:
            reply = {"error": error.code, "message": str(error)}
        except Exception as error:  # our own fault; the children need their parent all the same
            traceback.print_exc()
            reply = {"error": "internal", "message": repr(error)}
        if reply is not None:
            connection.tell({"id": number, **reply})

    def _check_epoch(self, epoch: int | None) -> None:
        if epoch is None:
            raise Refused("no_hello", "say hello first")
        if epoch < self._attempts.epoch:
            raise Refused("stale_epoch", f"epoch {self._attempts.epoch} was here; {epoch} is over")

    def _hello(self, connection: Connection, message: Message) -> Message:
        told = message.get("epoch", -1)
        epoch = self._attempts.epoch if told is None else orders.whole("epoch", told)
        self._check_epoch(epoch)
        if epoch > self._attempts.epoch:
            self._attempts.epoch = epoch
            self._starter.journal.append({"do": "epoch", "epoch": epoch})
        connection.epoch = epoch
        return {
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

    def _start(self, _: Connection, message: Message) -> Message:
        wanted = orders.orders(message.get("jobs"))
        new: list[tuple[Attempt, Order]] = []
        for order in wanted:
            if (order.job, order.attempt) not in self._attempts.known:
                begun = self._attempts.begin(
                    order.job, order.attempt, order.fence, order.cgroups, order.note
                )
                self._starter.turns.take(begun, order)
                new.append((begun, order))
        refusal = self._write_intents([attempt for attempt, _ in new])
        if not refusal and new:
            with self._starter.spawner:
                for attempt, order in new:
                    if not attempt.waiting:
                        self._starter.spawn(attempt, order)
        if any(attempt.end is not None for attempt, _ in new):
            self._starter.commit()  # so that their end may be told
        return {"attempts": [self._told(order, refusal) for order in wanted]}

    def _told(self, order: Order, refusal: str) -> Message:
        known = self._attempts.known.get((order.job, order.attempt))
        if known is not None:
            return known.told()
        name = {"job": order.job, "attempt": order.attempt, "fence": order.fence}
        return {**name, "state": "refused", "reason": "journal", "message": refusal}

    def _write_intents(self, new: list[Attempt]) -> str:
        """Write down what is about to be started; or why it will not be."""
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

    def _stop(self, connection: Connection, message: Message) -> Message | None:
        attempt = self._attempts.known.get((orders.job_of(message), orders.attempt_of(message)))
        signum, to = orders.signal_of(message), message.get("to", "group")
        if to not in ("group", "leader"):
            raise Malformed('to: give "group" or "leader"')
        everything = orders.flag(message, "all")
        if attempt is None:
            raise Refused("unknown_attempt", "nothing is known of this attempt")
        if everything:
            self._starter.give_up(attempt)
            self._hunt(connection, message.get("id"), attempt)
            return None
        sent = attempt.boot == self._attempts.boot and _signal(attempt, signum, to)
        return {"sent": sent, "attempt": attempt.told()}

    def _hunt(self, connection: Connection, number: object, attempt: Attempt) -> None:
        def done(killed: int, left: list[int]) -> None:
            reply = {"id": number, "killed": killed, "left": left, "attempt": attempt.told()}
            connection.tell(reply)

        self._starter.hunts.add(attempt, done)

    def _list(self, *_: object) -> Message:
        known = self._attempts.known.values()
        ended = [attempt for attempt in known if attempt.end is not None]
        alive = self._starter.families.alive() if ended and self._starter.families.strays() else {}
        return {
            "running": [attempt.told() for attempt in known if attempt.end is None],
            "ended": [
                attempt.told() | {"survivors": [one.pid for one in alive.get(attempt.key, ())]}
                for attempt in ended
            ],
            "trouble": self._starter.trouble,
        }

    def _return(self, _: Connection, message: Message) -> Message:
        known = map(self._attempts.known.get, orders.keys(message.get("attempts")))
        return {"returned": sum(self._starter.give_up(one) for one in known if one is not None)}

    def _forget(self, _: Connection, message: Message) -> Message:
        gone = self._attempts.forget(orders.keys(message.get("attempts")))
        for attempt in gone:
            self._starter.turns.forget(attempt)
        if gone:
            keys = [attempt.key for attempt in gone]
            self._starter.journal.append({"do": "forget", "attempts": keys})
        return {"forgotten": len(gone)}

    def _watch(self, connection: Connection, _: Message) -> Message:
        connection.watching = True
        return {}

    def _quit(self, *_: object) -> Message:
        if self._attempts.running or self._starter.turns:
            raise Refused("busy", f"{len(self._attempts.running)} jobs run")
        self._starter.quitting = True
        return {}


def _signal(attempt: Attempt, signum: int, to: str) -> bool:
    """Signal a living leader or its group; whoever may have its number now is left alone."""
    leader = None if attempt.pid is None else processes.process(attempt.pid)
    if leader is None or leader.start != attempt.start:
        return False
    if to == "leader":
        return processes.send(leader, signum)
    try:
        os.killpg(leader.pid, signum)
    except ProcessLookupError:
        return False
    return True
