"""What the common commands load: time to start is part of the interface."""

import os
import subprocess
import sys

import pytest

import fake_api as samples

REPORT = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
HEAVY = {
    "asyncio", "dataclasses", "email", "fastapi", "http.client", "httpx", "logging", "numpy",
    "pydantic", "rich", "shlex", "shutil", "sqlalchemy", "ssl", "subprocess", "tempfile",
}  # fmt: skip
OURS = {
    "gridhand.cli.commands", "gridhand.cli.commands.run", "gridhand.cli.help_format", "gridhand.cli.main",
    "gridhand.cli.options", "gridhand.cli.support", "gridhand.cli.support.attach",
    "gridhand.cli.support.completions", "gridhand.cli.support.outcome", "gridhand.cli.support.scripts", "gridhand.cli.support.stdin",
    "gridhand.posix.caller_settings", "gridhand.posix.locks", "gridhand.posix.peers", "gridhand.posix.private_files",
    "gridhand.posix.procfs",
}  # fmt: skip


@pytest.mark.parametrize("arguments", [["run", "true"], ["jobs"], ["status"], ["list"]])
def test_a_command_loads_click_and_the_client_and_little_else(fake, arguments):
    fake.submits(samples.job())
    fake.follows(
        {"event": "job", "job": samples.running()}, {"event": "end", "job": samples.ended()}
    )
    fake.answers["GET", "/jobs"] = {"jobs": [samples.ended()]}
    fake.answers["GET", "/nodes"] = {"nodes": [samples.node()]}
    nothing = {"nodes": [], "total": {}, "allocated": {}, "available": {}, "jobs": {}}
    about = {"version": "0", "pid": 1, "uptime_s": 1, "home": "", "store": ""}
    fake.answers["GET", "/status"] = {"controller": about, **nothing}
    # Measuring coverage in the new process would load what this looks for.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", REPORT + samples.CODE, *arguments],
        env=environment, stdin=subprocess.PIPE, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = set(done.stderr.split())
    assert loaded & HEAVY == set()
    ours = {name for name in loaded if name.startswith("gridhand.") and name.count(".") > 1}
    client = {name for name in ours if name.startswith("gridhand.client.")}
    assert "gridhand.client.client" in client
    if arguments == ["run", "true"]:
        assert ours - client <= OURS


def test_it_ends_at_once_unless_somebody_waits_for_the_end(fake):
    """And what was printed is there in full."""
    code = "import sys; from gridhand.cli.main import main; sys.stdout.write('x' * 100_000); main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--version"], capture_output=True, check=True
    )
    assert done.stdout.startswith(b"x" * 100_000 + b"grid ")
