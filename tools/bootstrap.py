"""Makes `.venv` and installs this project into it, editable, at the versions in constraints.txt.

`./grid` and the Makefile call this whenever the environment may not be what they need. It works
under a lock, so any number of them may call at the same moment, and it trusts nothing that was
left half-made: the file `installed` is removed before the first change and written after the
last one, so an environment without it is thrown away and made anew.

Standard library only: it runs before anything is installed.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OWN_FAILURE = 125
LINES_SHOWN = 30


class SetupFailed(Exception):
    """What happened, and in `hint` what to do next."""

    def __init__(self, message: str, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


@dataclass(frozen=True)
class Stamp:
    """What an environment was made for. `./grid` reads the first line of its file."""

    root: str
    digest: str
    extras: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> "Stamp | None":
        try:
            root, digest, extras = path.read_text().splitlines()
        except (OSError, ValueError):
            return None
        return cls(root, digest, frozenset(extras.split()))

    def write(self, path: Path, *, as_of_ns: int) -> None:
        """Write it with the time of the files it answers for, so that a later change shows.

        By a rename, because `./grid` may read it at any moment and takes no lock.
        """
        fresh = path.with_name(f"{path.name}.new")
        fresh.write_text(f"{self.root}\n{self.digest}\n{' '.join(sorted(self.extras))}\n")
        os.utime(fresh, ns=(as_of_ns, as_of_ns))
        fresh.replace(path)


class Progress:
    """At most one line on stderr, however long it takes."""

    def __init__(self) -> None:
        self._said = False

    def say(self, line: str) -> None:
        if not self._said:
            print(f"grid: {line} ...", file=sys.stderr, flush=True)
        self._said = True


class Environment:
    def __init__(self, name: str, requirements: Sequence[Path], progress: Progress) -> None:
        self.folder = ROOT / name
        self.stamp = self.folder / "installed"
        self.python = self.folder / "bin" / "python"
        self.requirements = requirements
        self.sources = [ROOT / "pyproject.toml", ROOT / "constraints.txt", *requirements]
        self.progress = progress

    def ensure(self, extras: frozenset[str]) -> None:
        """Leave with an environment that holds the project, `extras` and the requirements."""
        with self._lock() as lock:
            # Time and digest are taken before installing: what changes meanwhile shows next time.
            as_of_ns = max(path.stat().st_mtime_ns for path in self.sources)
            digest = self._digest()
            stamp = self._usable_stamp()
            if stamp and stamp.digest == digest and extras <= stamp.extras:
                stamp.write(self.stamp, as_of_ns=as_of_ns)  # touched at most: nothing to install
                return
            if stamp:
                extras |= stamp.extras
                self.progress.say(f"updating {self.folder.name}")
                self.stamp.unlink()
            else:
                self.progress.say(f"setting up {self.folder.name} (once, about 20 s)")
                self._create(lock)
            self._install(extras, lock)
            Stamp(str(ROOT), digest, extras).write(self.stamp, as_of_ns=as_of_ns)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[int]:
        """Hold the lock of this environment. It lies beside the folder, which may be replaced."""
        lock = os.open(f"{self.folder}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if not _locked_within(lock, seconds=1):
                self.progress.say(f"waiting for another set-up of {self.folder.name}")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield lock
        finally:
            os.close(lock)

    def _digest(self) -> str:
        digest = hashlib.sha256()
        for path in self.sources:
            content = path.read_bytes()
            digest.update(b"%d\n" % len(content) + content)
        return digest.hexdigest()

    def _usable_stamp(self) -> Stamp | None:
        stamp = Stamp.read(self.stamp)
        if stamp is None or not (self.folder / "bin" / "grid").exists():
            return None
        with contextlib.suppress(OSError):
            # Python itself may be gone, and a moved environment points to where it was made.
            works = subprocess.run([self.python, "-c", ""], capture_output=True, check=False)
            if Path(stamp.root).samefile(ROOT) and works.returncode == 0:
                return stamp
        return None

    def _create(self, lock: int) -> None:
        if self.folder.is_symlink() or self.folder.is_file():
            self.folder.unlink()
        elif self.folder.exists():
            shutil.rmtree(self.folder)
        _run(
            [sys.executable, "-I", "-m", "venv", str(self.folder)],
            lock,
            failed=f"could not make {self.folder.name}",
            hint="Python's `venv` and `ensurepip` are needed; some systems have them in a package "
            "of their own, named python3-venv or alike.",
        )

    def _install(self, extras: frozenset[str], lock: int) -> None:
        project = f".[{','.join(sorted(extras))}]" if extras else "."
        wanted = ["--editable", project]
        for path in self.requirements:
            wanted += ["--requirement", str(path)]
        _run(
            [str(self.python), "-I", "-m", "pip", "install", "--no-input", *wanted],
            lock,
            failed=f"could not install into {self.folder.name}",
            hint="See what pip says above; it needs to reach a package index. "
            "Nothing is left half-made: the next use tries again.",
        )


def _locked_within(lock: int, *, seconds: float) -> bool:
    """Try for a moment before saying anything: most holders only look."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)


def _run(command: Sequence[str], lock: int, *, failed: str, hint: str) -> None:
    """Run a step that changes the environment; show its output only if it fails.

    The step inherits the lock. Should this process be killed while the step goes on, nobody
    else touches the environment before the step has ended too.
    """
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        pass_fds=[lock],
        check=False,
    )
    if done.returncode:
        print(*done.stdout.splitlines()[-LINES_SHOWN:], sep="\n", file=sys.stderr)
        raise SetupFailed(failed, hint)


def _environment() -> dict[str, str]:
    """The caller's environment, with the constraints for the project and its build backend.

    They are given as variables because pip passes those on to the build, and by a bare name
    because pip splits variables at spaces, which the path of this folder may have.
    """
    return os.environ | {
        "PIP_CONSTRAINT": "constraints.txt",
        "PIP_BUILD_CONSTRAINT": "constraints.txt",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_USER": "0",
    }


def _extras(text: str) -> frozenset[str]:
    return frozenset(filter(None, text.split(",")))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Make or update this project's environment.")
    parser.add_argument("--extras", type=_extras, default=frozenset(), help="such as test,dev")
    parser.add_argument("--venv", default=".venv", help="its folder (default: %(default)s)")
    parser.add_argument("--requirement", type=Path, action="append", default=[], metavar="FILE")
    options = parser.parse_args(arguments)
    requirements = [path.resolve() for path in options.requirement]
    environment = Environment(options.venv, requirements, Progress())
    try:
        environment.ensure(options.extras)
    except SetupFailed as error:
        print(f"error: {error}\nhint: {error.hint}", file=sys.stderr)
        return OWN_FAILURE
    except OSError as error:
        print(f"error: could not set up {options.venv}: {error}", file=sys.stderr)
        print("hint: This folder must be writable and have room for .venv.", file=sys.stderr)
        return OWN_FAILURE
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
