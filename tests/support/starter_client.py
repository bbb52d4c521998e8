"""A connection to a starter without an event loop, and orders for it, for tests."""

import json
import signal
from collections import deque

from gridhand.agent.link_errors import LinkRefused
from gridhand.agent.starter import connection
from gridhand.agent.starter.starter_client import ensure_starter, unreachable

_TIMEOUT_S = 10.0
_BATCH = 256  # commands in one message


def order(job, attempt, argv, *, cwd, env, stdout, stderr, fence=None, stdin=None, cores=None,
          cgroups=(), note=None):  # fmt: skip
    """Return an order as `start` takes it, as plain data so that a test can spoil it."""
    return {
        "job": job,
        "attempt": attempt,
        "fence": fence,
        "argv": list(argv),
        "cwd": cwd,
        "env": dict(env),
        "cores": None if cores is None else list(cores),
        "stdin": stdin,
        "stdout": stdout,
        "stderr": stderr,
        "cgroups": list(cgroups),
        **({} if note is None else {"note": note}),
    }


class StarterClient:
    """A connection to the starter of a folder.

    To miss no end: `watch`, then `list`. What ends in between is told twice, never not at all.
    """

    def __init__(self, folder, *, epoch=0, timeout_s=_TIMEOUT_S):
        """Connect to a running starter; raise LinkAbsent if none runs."""
        self.timeout_s = timeout_s
        self._folder = folder
        self._number = 0
        self._ended = deque()
        self._inbox = bytearray()
        try:
            self._socket = connection.connect(folder, timeout_s)
        except OSError as error:
            raise unreachable(folder, error) from error
        try:
            self.greeting = self.hello(epoch)
        except BaseException:
            self._socket.close()
            raise

    @classmethod
    def ensure(cls, folder, *, epoch=0, grace_s=60.0, timeout_s=_TIMEOUT_S):
        """Connect to the starter of this folder; start it if none runs."""
        ensure_starter(folder, grace_s=grace_s, timeout_s=timeout_s)
        return cls(folder, epoch=epoch, timeout_s=timeout_s)

    def hello(self, epoch):
        return self._ask({"do": "hello", "epoch": epoch})

    def start(self, jobs):
        """Start each order, and return the report of each."""
        orders = list(jobs)
        reports = []
        for first in range(0, len(orders), _BATCH):
            reply = self._ask({"do": "start", "jobs": orders[first : first + _BATCH]})
            reports += reply["attempts"]
        return reports

    def stop(self, job, attempt, signum=signal.SIGTERM, *, to="group"):
        """Send a signal to the process group or the leader; return whether it was there."""
        message = {"do": "stop", "job": job, "attempt": attempt, "signal": int(signum), "to": to}
        return self._ask(message)["sent"]

    def stop_all(self, job, attempt):
        """Kill all of its processes; `left` in the answer has those that do not die."""
        message = {"do": "stop", "job": job, "attempt": attempt, "all": True}
        return self._ask(message, self.timeout_s + 10.0)

    def list(self):
        return self._ask({"do": "list"})

    def give_back(self, attempts):
        """End those that wait for their turn; return how many of these did."""
        return self._ask({"do": "return", "attempts": [*map(list, attempts)]})["returned"]

    def forget(self, attempts):
        return self._ask({"do": "forget", "attempts": list(attempts)})["forgotten"]

    def watch(self):
        """Have `ended` yield what ends from now on."""
        self._ask({"do": "watch"})

    def ended(self, timeout_s=None):
        """Yield attempts as they end, until none has for `timeout_s`; needs `watch`."""
        while True:
            while self._ended:
                yield self._ended.popleft()
            try:
                self._take(self._read_line(timeout_s))
            except TimeoutError:
                return
            except OSError as error:
                raise unreachable(self._folder, error) from error

    def quit(self):
        """End the starter; refused while a job runs."""
        self._ask({"do": "quit"})

    def fileno(self):
        return self._socket.fileno()

    def close(self):
        self._socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def _ask(self, message, timeout_s=None):
        self._number += 1
        # `do` comes first: only what begins as a start may be longer than a megabyte.
        text = json.dumps({**message, "id": self._number}, separators=(",", ":"))
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(text.encode() + b"\n")
            while (reply := self._take(self._read_line(timeout_s or self.timeout_s))) is None:
                pass
        except OSError as error:
            raise unreachable(self._folder, error) from error
        if "error" in reply:
            raise LinkRefused("starter", reply["error"], reply["message"])
        return reply

    def _take(self, text):
        """Return the answer to the last request; keep an event for `ended`."""
        message = json.loads(text)
        if "event" in message:
            if message["event"] == "ended":
                self._ended += message["attempts"]
            return None
        # An answer to an earlier request that timed out is nobody's any more.
        return message if message["id"] in (self._number, None) else None

    def _read_line(self, timeout_s):
        self._socket.settimeout(timeout_s)
        searched = 0
        while (end := self._inbox.find(b"\n", searched)) < 0:
            searched = len(self._inbox)
            chunk = self._socket.recv(1 << 18)
            if not chunk:
                raise ConnectionResetError("it closed the connection")
            self._inbox += chunk
        text = bytes(self._inbox[:end])
        del self._inbox[: end + 1]
        return text
