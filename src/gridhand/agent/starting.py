"""The other end of the starter: starts one where none runs, and speaks with it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from gridhand.agent import wire
from gridhand.core.errors import GridError

Facts = dict[str, Any]

_TIMEOUT_S = 10.0
_STARTING_S = 20.0
_BATCH = 256  # commands in one message: more of them would only keep the starter from its children
_PAUSE_S = 0.01
_LOCK = "ensure.lock"


class StarterError(GridError):
    """Something about the process that starts commands."""

    code: ClassVar[str] = "starter_error"


class StarterUnavailable(StarterError):
    """It does not answer. What was asked may have been done: ask again, which is safe."""

    code = "starter_unavailable"


class StarterAbsent(StarterUnavailable):
    """There is none, or it was just about to end."""

    code = "starter_absent"


class StarterRefused(StarterError):
    """It answered that it will not; `because` is its word for why."""

    code = "starter_refused"

    def __init__(self, because: str, message: str) -> None:
        super().__init__(f"the starter refuses: {message}", hint="See which epoch is in charge.")
        self.because = because


def order(
    job: str,
    attempt: int,
    argv: Sequence[str],
    *,
    cwd: str,
    env: Mapping[str, str],
    stdout: str,
    stderr: str,
    fence: int | str | None = None,
    stdin: str | None = None,
    cores: Iterable[int] | None = None,
    cgroups: Iterable[str] = (),
    note: Facts | None = None,
) -> Facts:
    """A command as `start` takes it; it gets this environment and nothing else."""
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


class Starters:
    """A connection to the starter of a folder. For one thread at a time.

    To miss no end: `watch`, then `list`. What ends in between is told twice, never not at all.
    """

    def __init__(
        self, folder: str, *, epoch: int | None = 0, timeout_s: float = _TIMEOUT_S
    ) -> None:
        """Connect to one that runs; raises `StarterAbsent` when none does."""
        self.timeout_s = timeout_s
        self._number = 0
        self._ended: deque[Facts] = deque()
        self._inbox = bytearray()
        try:
            self._socket = wire.connect(folder, timeout_s)
        except OSError as error:
            raise _unavailable(f"no starter in {folder} answers", error) from error
        try:
            self.greeting = self.hello(epoch)
        except BaseException:
            self._socket.close()
            raise

    @classmethod
    def ensure(
        cls,
        folder: str,
        *,
        epoch: int | None = 0,
        grace_s: float = 60.0,
        timeout_s: float = _TIMEOUT_S,
        around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    ) -> Self:
        """Connect to the starter of this folder; start it, belonging to nobody, if none runs.

        However many do this at the same moment, one is started. One that is there and does not
        answer is not replaced: its jobs would be lost with it. The new process is made inside of
        `around`, for a caller that has what it must not inherit.
        """
        os.makedirs(folder, mode=0o700, exist_ok=True)
        with contextlib.suppress(StarterAbsent):
            return cls(folder, epoch=epoch, timeout_s=timeout_s)
        with locked(folder):
            with contextlib.suppress(StarterAbsent):
                return cls(folder, epoch=epoch, timeout_s=timeout_s)
            command = ["gridhand.agent.starter", folder, "--grace", str(grace_s)]
            launch(command, folder, around)
            return cls(folder, epoch=epoch, timeout_s=timeout_s)

    def hello(self, epoch: int | None) -> Facts:
        return self._ask({"do": "hello", "epoch": epoch})

    def start(self, jobs: Iterable[Facts]) -> list[Facts]:
        """Start each `order`, and say of each what is known; one known already is not started."""
        wanted = list(jobs)
        told: list[Facts] = []
        for first in range(0, len(wanted), _BATCH):
            reply = self._ask({"do": "start", "jobs": wanted[first : first + _BATCH]})
            told += reply["attempts"]
        return told

    def stop(
        self, job: str, attempt: int, signum: int = signal.SIGTERM, *, to: str = "group"
    ) -> bool:
        """Send a signal to its process group or its `leader`; whether it was there to get it."""
        message = {"do": "stop", "job": job, "attempt": attempt, "signal": int(signum), "to": to}
        return bool(self._ask(message)["sent"])

    def stop_all(self, job: str, attempt: int) -> Facts:
        """Kill all of its processes, wherever they went; `left` has those that would not die."""
        message = {"do": "stop", "job": job, "attempt": attempt, "all": True}
        return self._ask(message, self.timeout_s + 10.0)

    def list(self) -> Facts:
        """What is `running`, and what has `ended` and was not forgotten, with its survivors."""
        return self._ask({"do": "list"})

    def give_back(self, attempts: Iterable[tuple[str, int]]) -> int:
        """End those that wait for their turn; how many of these did."""
        return int(self._ask({"do": "return", "attempts": [*map(list, attempts)]})["returned"])

    def forget(self, attempts: Iterable[tuple[str, int]]) -> int:
        """These ends are safe elsewhere; the starter need not keep them."""
        return int(self._ask({"do": "forget", "attempts": list(attempts)})["forgotten"])

    def watch(self) -> None:
        """From now on `ended` yields what ends."""
        self._ask({"do": "watch"})

    def ended(self, timeout_s: float | None = None) -> Iterator[Facts]:
        """Attempts as they end, until none has for `timeout_s`; needs `watch`."""
        while True:
            while self._ended:
                yield self._ended.popleft()
            try:
                self._take(self._read_line(timeout_s))
            except TimeoutError:
                return
            except OSError as error:
                raise _unavailable("the starter is gone", error) from error

    def quit(self) -> None:
        """End the starter; refused while a job runs."""
        self._ask({"do": "quit"})

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, message: Facts, timeout_s: float | None = None) -> Facts:
        self._number += 1
        # `do` comes first: only what begins as a start may be longer than a megabyte.
        text = json.dumps({**message, "id": self._number}, separators=(",", ":"))
        try:
            self._socket.settimeout(self.timeout_s)
            self._socket.sendall(text.encode() + b"\n")
            while True:
                reply = self._take(self._read_line(timeout_s or self.timeout_s))
                if reply is not None:
                    break
        except OSError as error:
            raise _unavailable("the starter does not answer", error) from error
        if "error" in reply:
            raise StarterRefused(reply["error"], reply["message"])
        return reply

    def _take(self, text: bytes) -> Facts | None:
        """The answer to the last question; an event is kept for `ended`."""
        message: Facts = json.loads(text)
        if "event" in message:
            if message["event"] == "ended":
                self._ended += message["attempts"]
            return None
        # An answer to an earlier question, which was given up, is nobody's any more.
        return message if message["id"] in (self._number, None) else None

    def _read_line(self, timeout_s: float | None) -> bytes:
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


def _unavailable(what: str, error: OSError) -> StarterUnavailable:
    """Only when nobody can be there is it right to start another one."""
    absent = isinstance(error, ConnectionError | FileNotFoundError)
    return (StarterAbsent if absent else StarterUnavailable)(f"{what}: {error}")


@contextlib.contextmanager
def locked(folder: str) -> Iterator[None]:
    """Only one at a time starts a daemon here. A file lock: two threads exclude each other, too."""
    fd = os.open(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _STARTING_S
    try:
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StarterUnavailable(
                        f"another one starts it since long: {folder}"
                    ) from None
                select.select([], [], [], _PAUSE_S)
        yield
    finally:
        os.close(fd)


def launch(
    command: list[str],
    folder: str,
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> None:
    """Start a daemon, a module of ours with its arguments, and wait until it is ready."""
    # One that is started from inside a job is not a part of that job; and what lies in the current
    # folder under the name of a module is not that module.
    env = {name: text for name, text in os.environ.items() if not name.startswith("GRIDHAND_")}
    with around():
        started = subprocess.Popen(
            [sys.executable, "-E", "-s", "-P", "-m", *command, "--detach"],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    try:
        _, said = started.communicate(timeout=_STARTING_S)
    except subprocess.TimeoutExpired as error:
        started.kill()
        started.communicate()
        raise StarterUnavailable(f"what was started in {folder} does not come up") from error
    if started.returncode != 0:
        words = said.decode(errors="replace").strip() or f"see {os.path.join(folder, 'log')}"
        raise StarterUnavailable(f"what was started in {folder} has failed: {words[-500:]}")
