"""Plant faults in the code, one at a time, and see whether the tests notice.

    tools/plant.py [--jobs N] [--only TEXT] [--trust] [--json] [TABLE]

A test suite that has never failed proves little. The table, `tools/faults.toml`, lists plausible
single faults: a file under src/gridhand, a piece of its text that occurs there once, what to put in
its place, and the tests that should notice. Each fault is planted in a temporary copy of the
project, which has an environment of its own, so that processes that the tests start run the fault
too. Tests that notice a fault run once on honest code as well: a test that fails there proves
nothing.

A fault is `found` when a test fails or hangs, and `missed` when all pass. It is `stale` when its
text is no longer in the file just once or a test is gone, and `unsound` when its tests fail on
honest code. The exit code is 0 when every fault is found.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
import venv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "faults.toml"
SOURCE = Path("src/gridhand")
TEST_S = 30  # a test that takes longer on honest code does not belong into the table
RUN_S = 180
_PYTEST = ("-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist",
           "--hypothesis-seed=0", f"--timeout={TEST_S}")  # fmt: skip
_ALL_PASSED, _SOME_FAILED, _INTERRUPTED = 0, 1, 2


@dataclass(frozen=True)
class Fault:
    """One change of the code, and the tests that should notice it."""

    name: str
    file: str  # under src/gridhand
    old: str
    new: str
    tests: tuple[str, ...]  # files or single tests, under tests

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Fault:
        return cls(**{**fields, "tests": tuple(fields["tests"])})


@dataclass(frozen=True)
class Outcome:
    """What became of one planted fault, and the first line that says so."""

    fault: Fault
    verdict: str  # found, missed, stale or unsound
    detail: str
    seconds: float


class Copy:
    """A copy of the project in a temporary folder, with an environment that runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        unwanted = shutil.ignore_patterns(".*", "__pycache__", "benchmarks", "docs")
        shutil.copytree(ROOT, folder, ignore=unwanted, symlinks=True)
        venv.create(folder / ".venv", symlinks=True)
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        packages = folder / ".venv" / "lib" / version / "site-packages"
        # The copy comes before the packages of the real environment, which has the real project.
        theirs = [path for path in sys.path if path.endswith("site-packages")]
        lines = [
            str(folder / "src"),
            *(f"import site; site.addsitedir({path!r})" for path in theirs),
        ]
        (packages / "planted.pth").write_text("\n".join(lines) + "\n")
        self._python = folder / ".venv" / "bin" / "python"

    def try_fault(self, fault: Fault) -> Outcome:
        """Plant the fault, run its tests, and take it out again."""
        begun = time.monotonic()
        path = self.folder / SOURCE / fault.file
        honest = path.read_text() if path.exists() else ""
        if (count := honest.count(fault.old)) != 1:
            return Outcome(fault, "stale", f"the old text occurs {count} times", 0.0)
        try:
            _write(path, honest.replace(fault.old, fault.new))
            code, detail = self.run(fault.tests)
        finally:
            _write(path, honest)
        verdict = {_ALL_PASSED: "missed", _SOME_FAILED: "found", _INTERRUPTED: "found"}
        return Outcome(fault, verdict.get(code, "stale"), detail, time.monotonic() - begun)

    def run(self, tests: Iterable[str]) -> tuple[int, str]:
        """Return the exit code of pytest and the line that names the first failure.

        A run that hangs is ended as a whole, and counts as failed.
        """
        scratch = f"--basetemp={self.folder.parent}/t{self.folder.name}"  # short, for sockets
        command = [str(self._python), *_PYTEST, scratch, *(f"tests/{test}" for test in tests)]
        run = subprocess.Popen(
            command,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            said, _ = run.communicate(timeout=RUN_S)
            code = run.returncode
        except subprocess.TimeoutExpired:
            code, said = _SOME_FAILED, f"FAILED: hung for {RUN_S} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        failed = [line for line in said.splitlines() if line.startswith(("FAILED", "ERROR"))]
        hung = [line for line in said.splitlines() if "Timeout" in line]
        last = [said.strip().rpartition("\n")[2]]
        return code, (failed or hung or last)[0]


def _write(path: Path, text: str) -> None:
    """Write a module, and drop its byte code, which could be taken for that of this text."""
    path.write_text(text)
    for cached in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        cached.unlink()


def read_table(path: Path = TABLE) -> list[Fault]:
    return [Fault.of(fields) for fields in tomllib.loads(path.read_text())["fault"]]


class HonestRuns:
    """Which groups of tests fail on honest code; each group runs there once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._locks: dict[tuple[str, ...], threading.Lock] = {}
        self._failures: dict[tuple[str, ...], str | None] = {}

    def failure(self, copy: Copy, tests: tuple[str, ...]) -> str | None:
        """Return the line of the first failure, or None if all pass."""
        with self._lock:
            lock = self._locks.setdefault(tests, threading.Lock())
        with lock:
            if tests not in self._failures:
                code, detail = copy.run(tests)
                self._failures[tests] = None if code == _ALL_PASSED else detail
            return self._failures[tests]


def plant(
    faults: list[Fault], jobs: int = 1, *, quiet: bool = False, trust: bool = False
) -> list[Outcome]:
    """Plant each of the faults and return the outcomes in the same order.

    With `trust` the tests are taken to pass on honest code.
    """
    outcomes: dict[Fault, Outcome] = {}
    honest = HonestRuns()
    waiting: queue.SimpleQueue[Fault] = queue.SimpleQueue()
    for fault in faults:
        waiting.put(fault)

    def work(copy: Copy) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                fault = waiting.get_nowait()
                outcome = copy.try_fault(fault)
                found = outcome.verdict == "found" and not trust
                if found and (why := honest.failure(copy, fault.tests)):
                    outcome = replace(outcome, verdict="unsound", detail=why)
                outcomes[fault] = outcome
                if not quiet:
                    print(line_of(outcome), file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="ghp-", ignore_cleanup_errors=True) as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(max(1, jobs))]
        threads = [threading.Thread(target=work, args=(copy,)) for copy in copies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [outcomes[fault] for fault in faults]


def line_of(outcome: Outcome) -> str:
    fault = outcome.fault
    return f"{outcome.verdict:8}{outcome.seconds:6.1f} s  {fault.name}: {outcome.detail[:120]}"


def summary(outcomes: list[Outcome]) -> dict[str, int]:
    verdicts = [outcome.verdict for outcome in outcomes]
    counts = {
        verdict: verdicts.count(verdict) for verdict in ("found", "missed", "stale", "unsound")
    }
    return {"planted": len(outcomes), **counts}


def main() -> int:
    parser = argparse.ArgumentParser(description="Plant faults and see whether tests notice.")
    parser.add_argument("table", nargs="?", type=Path, default=TABLE)
    parser.add_argument("--jobs", type=int, default=2, help="faults at a time (default 2)")
    parser.add_argument("--only", default="", help="only faults with this text in name or file")
    parser.add_argument("--trust", action="store_true", help="run no tests on honest code")
    parser.add_argument("--json", action="store_true", help="write all outcomes as JSON")
    options = parser.parse_args()
    faults = [
        fault for fault in read_table(options.table) if options.only in f"{fault.name} {fault.file}"
    ]
    outcomes = plant(faults, options.jobs, quiet=options.json, trust=options.trust)
    counts = summary(outcomes)
    if options.json:
        print(
            json.dumps({**counts, "outcomes": [asdict(outcome) for outcome in outcomes]}, indent=1)
        )
    else:
        print(", ".join(f"{name} {count}" for name, count in counts.items()))
    return 0 if counts["found"] == counts["planted"] else 1


if __name__ == "__main__":
    sys.exit(main())
