"""Minutes of faults of every kind at once: no core, device or job is ever given out twice.

`GRIDHAND_SOAK_MINUTES` says how long each case takes; `GRIDHAND_SOAK_SEED` repeats one.
"""

import os
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

import pytest

import gridhand
from other_user import OTHER
from torture import Faults, Stream, TorturedMachine, torture
from until import until

pytestmark = [pytest.mark.soak, pytest.mark.timeout(6 * 3600)]

MINUTES = float(os.environ.get("GRIDHAND_SOAK_MINUTES", "5"))
SEED = int(os.environ.get("GRIDHAND_SOAK_SEED", time.time_ns() % 10**9))
STANDIN = Path(__file__).parents[1] / "support" / "nvml_standin.c"
GB = 10**9
DEVICES = "".join(
    f"device GPU-0000000{n}-aaaa-bbbb-cccc-00000000000{n} {40 * GB} 8 0 NVIDIA A100-SXM4-40GB\n"
    for n in range(2)
)


@pytest.fixture
def place():
    """A folder that an ordinary user may reach, which those of pytest are not."""
    folder = Path(tempfile.mkdtemp(prefix="gridhand-torture-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def standin(place):
    subprocess.run(
        ["cc", "-shared", "-fPIC", STANDIN, "-o", place / "libnvidia-ml.so.1"], check=True
    )
    (place / "scenario").write_text(DEVICES)
    return {"LD_LIBRARY_PATH": str(place), "NVML_STANDIN": str(place / "scenario")}


@pytest.fixture
def python(place):
    """An interpreter that an ordinary user may run, with what this one has."""
    base = Path("/usr/bin") / f"python{sys.version_info.major}.{sys.version_info.minor}"
    if not base.exists():
        pytest.skip(f"there is no {base} that an ordinary user could run")
    subprocess.run([base, "-m", "venv", "--without-pip", place / "venv"], check=True)
    [packages] = (place / "venv" / "lib").glob("python*/site-packages")
    lines = [sysconfig.get_path("purelib"), str(Path(gridhand.__file__).parents[1])]
    (packages / "all.pth").write_text("".join(f"{line}\n" for line in lines))
    return place / "venv" / "bin" / "python"


CASES = {
    "root on SQLite": (0, False),
    "an ordinary user on SQLite, without control groups": (OTHER, False),
    "root on PostgreSQL": (0, True),
    "an ordinary user on PostgreSQL, without control groups": (OTHER, True),
}


@pytest.mark.skipif(os.geteuid() != 0, reason="plays an ordinary user, as only root can")
@pytest.mark.parametrize(("uid", "on_postgres"), CASES.values(), ids=CASES)
def test_nothing_is_promised_twice_or_lost(request, place, standin, python, uid, on_postgres):
    print(f"\n    seed {SEED}, {MINUTES:g} minutes", flush=True)
    server = request.getfixturevalue("private") if on_postgres else None
    store = server.new_database() if on_postgres else None
    machine = TorturedMachine(place / "home", uid=uid, python=python, store=store, **standin)
    folder = place / "locks"
    folder.mkdir()
    folder.chmod(0o777)
    stream = Stream(machine, folder, random.Random(SEED), server)
    own = Faults.ON_POSTGRES if on_postgres else Faults.ON_SQLITE
    faults = Faults(machine, stream, SEED + 1, [*Faults.KINDS, *Faults.HARSH, *own])
    try:
        begin(machine)
        torture(machine, stream, faults, seconds=60 * MINUTES)
        assert stream.violations() == []
        assert faults.failure is None
        until(lambda: not machine.json("jobs", "--state", "open"), seconds=180)
        check_ends(machine, stream, faults)
    finally:
        machine.close()


def begin(machine):
    """Start the first controller; those that follow know its store."""
    if machine.store is not None:
        machine.launch([*machine.command, "serve", "--store", machine.store])
        until(lambda: (machine.home / "socket").exists())
    machine.grid("status", check=0)


def check_ends(machine, stream, faults):
    jobs = machine.jobs()
    assert stream.acknowledged.keys() <= jobs.keys(), "an acknowledged job is lost"
    states = {}
    for id, code in stream.acknowledged.items():
        job = jobs[id]
        states[job["reason"]] = states.get(job["reason"], 0) + 1
        assert job["reason"] != "exit" or job["exit_code"] == code, job
    check_clients(jobs, stream)
    runs = stream.runs()
    assert "start_failed" not in states, "a command that can be started was not"
    assert max(runs.values(), default=0) <= 1, "an attempt has run twice"
    assert stream.violations() == []
    machine.check()
    assert machine.status()["allocated"] == {}, "something is held though nothing runs"
    print(f"    {len(jobs)} jobs, {sum(runs.values())} runs; {dict(faults.counts)}", flush=True)
    print(f"    {dict(stream.counts)}; ends: {states}", flush=True)


def check_clients(jobs, stream):
    """A client that lives gets the exit code of its job, or says why not; none is taken for gone."""
    ended = {client: said for client, said in stream.ended.items() if client not in stream.killed}
    told = 0
    for client, (_, said) in ended.items():
        code = stream.attached[client]
        if client.returncode != code:
            assert (client.returncode, bool(said.strip())) == (125, True), (code, said)
            told += 1
    gone = [job for job in jobs.values() if job["reason"] == "client_gone"]
    assert len(gone) <= len(stream.killed) + told, "a client that lived was taken for gone"
    print(f"    {len(ended)} clients, {told} of which were told why not", flush=True)
