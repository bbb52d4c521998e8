"""GPUs from the driver to the job: what is found, granted, seen inside, taken by strangers, lost.

The agent has the real nvidia-ml-py; below it is the stand-in of `tests/agent`, which tells what a
test wants it to, of eight devices of three kinds, one of which does not work.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from grid_machine import Machine
from until import until

STANDIN = Path(__file__).parents[1] / "support" / "nvml_standin.c"
COMPILER = shutil.which("cc") or shutil.which("gcc")
PYTHON = sys.executable
GB = 10**9
SMALL = ("-c", "0.01")
LOST = "nvmlDeviceGetHandleByIndex_v2 15"

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler to build the stand-in for the driver with")  # fmt: skip


def uuid(index):
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-00000000000{index}"


A100, T4, B200 = "A100", "T4", "B200"
NAMES = {A100: "NVIDIA A100-SXM4-40GB", T4: "Tesla T4", B200: "NVIDIA B200"}  # the driver's
KINDS = [(A100, 40, "8 0")] * 4 + [(T4, 16, "7 5")] * 2 + [(B200, 180, "10 0"), (A100, 40, "8 0")]
A100S, T4S, B200S, BROKEN = [uuid(n) for n in range(4)], [uuid(4), uuid(5)], [uuid(6)], 7
WELL = [*A100S, *T4S, *B200S]
EIGHT = [
    f"device {uuid(index)} {gigabytes * GB} {capability} {NAMES[model]}"
    for index, (model, gigabytes, capability) in enumerate(KINDS)
]
TWO = EIGHT[:2]

# What a job was given, as its own processes see it.
SHOW = (
    "import json, os; print(json.dumps({name: os.environ.get(name) for name in"
    " ('CUDA_VISIBLE_DEVICES', 'CUDA_DEVICE_ORDER', 'GRIDHAND_VARIANT',"
    " 'GRIDHAND_GPU_MEMORY_BYTES')}))"
)


class GpuMachine(Machine):
    """A machine whose GPUs are as `scenario` last said."""

    def __init__(self, home, library, devices, **variables):
        super().__init__(home, **variables)
        self._path = self.home.parent / f"{self.home.name}.scenario"
        self.devices = devices
        self.env |= {"LD_LIBRARY_PATH": str(library), "NVML_STANDIN": str(self._path)}
        if "CUDA_VISIBLE_DEVICES" not in variables:
            self.env.pop("CUDA_VISIBLE_DEVICES", None)
        self.scenario()

    def scenario(self, *lines):
        new = self._path.with_suffix(".new")
        new.write_text("".join(f"{line}\n" for line in (*self.devices, *lines)))
        new.replace(self._path)  # the agent may read it at any moment

    def node(self):
        (node,) = self.asked(lambda client: client.nodes(), "list")
        return node

    def gpus(self):
        return {gpu["id"]: gpu for gpu in self.node()["gpus"]}

    def health(self):
        return [gpu["health"] for gpu in self.node()["gpus"]]

    def sees(self, *words):
        """The environment of a job that was asked for with these words."""
        done = self.run(*SMALL, *words, "--", PYTHON, "-c", SHOW, check=0)
        return json.loads(done.stdout)

    def devices_of(self, *words):
        return self.sees(*words)["CUDA_VISIBLE_DEVICES"].split(",")

    def hold(self, *words):
        """A job that has what is asked for until `let_go`."""
        script = 'until [ -e "$0" ]; do sleep 0.05; done'
        return self.detach(*SMALL, *words, "--", "sh", "-c", script, self._gate())

    def let_go(self, *ids):
        Path(self._gate()).touch()
        jobs = self.wait(*ids)
        assert {job["exit_code"] for job in jobs.values()} <= {0}, jobs
        Path(self._gate()).unlink()

    def _gate(self):
        return str(self.home.parent / f"{self.home.name}.gate")

    def running(self, id):
        return until(lambda: (job := self.job(id))["phase"] == "running" and job)

    def problems(self):
        return [one["message"] for one in self.status()["problems"]]

    def finish(self):
        self.check()
        self.check_each_ended_once()
        assert self.status()["allocated"] == {}, "something is held though nothing runs"


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    made = tmp_path_factory.mktemp("driver")
    target = made / "libnvidia-ml.so.1"
    subprocess.run([COMPILER, "-shared", "-fPIC", STANDIN, "-o", target], check=True)
    return made


@pytest.fixture(scope="module")
def eight(tmp_path_factory, library):
    """Eight devices, the last of them lost; it stays as it is for all that only use it."""
    machine = GpuMachine(
        tmp_path_factory.mktemp("eight") / "h", library, [*EIGHT, f"fail {BROKEN} {LOST}"]
    )
    try:
        # Not left to the first test: one of them has a mask, which an agent would heed as well.
        machine.grid("status", check=0)
        yield machine
        machine.finish()
    finally:
        machine.close()


@pytest.fixture
def make(tmp_path, library):
    """Makes machines with two devices, to be treated badly."""
    made = []

    def make(*lines, devices=TWO, **variables):
        machine = GpuMachine(tmp_path / f"h{len(made)}", library, devices, **variables)
        made.append(machine)
        machine.scenario(*lines)
        return machine

    try:
        yield make
        for machine in made:
            machine.finish()
    finally:
        for machine in made:
            machine.close()


@pytest.fixture
def two(make):
    return make()


# ---- what is there


def test_status_and_list_show_the_devices_and_the_one_that_fails(eight):
    node = eight.node()
    assert [gpu["id"] for gpu in node["gpus"]][:BROKEN] == WELL
    assert eight.health() == ["ok"] * BROKEN + ["lost"]
    assert node["available"]["gpu"] == BROKEN
    assert [gpu["model"] for gpu in node["gpus"]][4:7] == [T4, T4, B200]
    assert any("GPU is lost" in problem for problem in eight.problems())
    assert "GPU is lost" in eight.grid("status", check=0).stdout
    assert "GPU:" in eight.grid("list", "--long", check=0).stdout
    stats = eight.grid("stats", node["name"], check=0).stdout
    assert all(id in stats for id in WELL)
    doctor = eight.grid("doctor")
    assert "GPU is lost" in doctor.stdout


# ---- what a job sees


def test_a_job_sees_exactly_its_devices_by_their_uuid(eight):
    seen = eight.sees("--gpus", 1)
    assert seen["CUDA_VISIBLE_DEVICES"] in WELL
    assert seen["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    two = eight.devices_of("--gpus", 2, "--gpu-model", A100)
    assert len(set(two)) == 2
    assert set(two) <= set(A100S)


def test_a_job_that_asked_for_none_sees_none(eight):
    assert eight.sees()["CUDA_VISIBLE_DEVICES"] == ""


def test_a_callers_own_mask_is_not_what_its_job_sees(eight):
    env = eight.env
    try:
        eight.env = {**env, "CUDA_VISIBLE_DEVICES": "3"}
        assert eight.sees()["CUDA_VISIBLE_DEVICES"] == ""
        assert eight.devices_of("--gpus", 1, "--gpu-model", T4)[0] in T4S
    finally:
        eight.env = env


def test_the_first_is_held_so_the_second_job_sees_the_second(two):
    """G5: device 1 is told as device 1, and not as 0."""
    first = two.hold("--gpus", 1)
    held = two.running(first)["gpus"]
    assert [*held, *two.devices_of("--gpus", 1)] == [uuid(0), uuid(1)]
    two.let_go(first)


MODELS = {
    "by model": (("--gpus", 1, "--gpu-model", T4), T4S),
    "by another model": (("--gpus", 1, "--gpu-model", B200), B200S),
    "a share of a model": (("--gpus", 0.5, "--gpu-model", B200), B200S),
    "at least a capability, by number and not as text": (("--gpus", 1, "--gpu-capability", "9.0"), B200S),
    "memory that only one has": (("--gpu-mem", "100GB"), B200S),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "among"), MODELS.values(), ids=MODELS)
def test_only_devices_that_suit(eight, asked, among):
    assert eight.devices_of(*asked)[0] in among


def test_a_model_is_found_by_the_name_that_people_call_it(eight):
    """As the help of `--gpu-model` has it."""
    assert eight.devices_of("--gpus", 1, "--gpu-model", "a100")[0] in A100S
    assert eight.devices_of("--gpus", 1, "--gpu-model", "T4")[0] in T4S


def test_what_no_device_has_is_refused_at_once(eight):
    for words in (("--gpu-mem", "200GB"), ("--gpus", 1, "--gpu-model", "H100"), ("--gpus", 9)):
        assert eight.run(*words, "--", "true").returncode == 125


def test_a_share_of_memory_is_told_to_the_job(eight):
    seen = eight.sees("--gpu-mem", "8GB")
    assert seen["CUDA_VISIBLE_DEVICES"] in WELL
    assert seen["GRIDHAND_GPU_MEMORY_BYTES"] == str(8 * GB)


def test_halves_fill_every_device_with_two_and_no_more(eight):
    """G4, with the seven that work."""
    ids = [eight.hold("--gpus", 0.5) for _ in range(2 * BROKEN)]
    on = Counter(eight.running(id)["gpus"][0] for id in ids)
    more = eight.hold("--gpus", 0.5)
    assert eight.state(more) == "queued"
    assert on == dict.fromkeys(WELL, 2)
    eight.let_go(*ids, more)


def test_one_device_holds_as_much_memory_as_it_has(eight):
    """G1: 16 GB serve two of 8 GB, and a third has to wait."""
    asked = ("--gpu-mem", "8GB", "--gpu-model", T4)
    ids = [eight.hold(*asked) for _ in range(4)]
    assert Counter(eight.running(id)["gpus"][0] for id in ids) == dict.fromkeys(T4S, 2)
    more = eight.hold(*asked)
    assert eight.state(more) == "queued"
    eight.let_go(*ids, more)


ALONE = """
import os, sys, time
folder, mine = sys.argv[1], os.environ["CUDA_VISIBLE_DEVICES"].split(",")
for device in mine:
    os.mkdir(os.path.join(folder, device))  # fails if another job is on it
time.sleep(0.15)
for device in mine:
    os.rmdir(os.path.join(folder, device))
"""


def test_no_two_exclusive_jobs_are_ever_on_one_device(eight, tmp_path):
    """Seen from inside: each makes a folder for its device, which can be made only once."""
    folder = tmp_path / "taken"
    folder.mkdir()
    amounts = [1, 2, 1, 1, 3, 1] * 5
    ids = [
        eight.detach(*SMALL, "--gpus", n, "--", PYTHON, "-S", "-c", ALONE, folder) for n in amounts
    ]
    jobs = eight.wait(*ids, timeout=90)
    assert {job["exit_code"] for job in jobs.values()} == {0}, jobs
    assert [len(eight.job(id)["gpus"]) for id in ids[:6]] == amounts[:6]
    assert list(folder.iterdir()) == []


# ---- without a device


def test_without_a_gpu_the_fallback_is_taken_and_the_job_is_told(make):
    """G6: it says so, and without a fallback it is refused."""
    machine = make(devices=[])
    asked = ("--gpus", 1)
    refused = machine.run(*SMALL, *asked, "--", "true")
    assert refused.returncode == 125
    seen = machine.sees(*asked, "--fallback", "cpu")
    assert (seen["CUDA_VISIBLE_DEVICES"], seen["GRIDHAND_VARIANT"]) == ("", "1")


def test_a_fallback_is_not_taken_where_there_is_a_device(eight):
    seen = eight.sees("--gpus", 1, "--fallback", "cpu")
    assert seen["CUDA_VISIBLE_DEVICES"] in WELL
    assert seen["GRIDHAND_VARIANT"] == "0"


# ---- strangers


def test_what_strangers_use_is_planned_around_and_named(two):
    """Row 71. What they give back is there again for those who wait for it."""
    stranger = os.getpid()
    two.scenario(f"process 0 Compute {stranger} {30 * GB}", f"process 1 Compute {stranger} {GB}")
    two.grid("status", check=0)
    until(lambda: two.gpus()[uuid(0)]["foreign_memory_bytes"] == 30 * GB)
    assert two.gpus()[uuid(1)]["free_memory_bytes"] == 39 * GB
    assert two.devices_of("--gpu-mem", "20GB") == [uuid(1)]
    assert two.devices_of("--gpu-mem", "39GB") == [uuid(1)]
    whole = two.hold("--gpus", 1)
    assert two.state(whole) == "queued"
    why = two.grid("why", whole, check=0).stdout
    assert f"30.00 GB of device {uuid(0)}" in why
    two.scenario(f"process 0 Compute {stranger} {30 * GB}")
    assert two.running(whole)["gpus"] == [uuid(1)]
    two.let_go(whole)


def test_strangers_that_were_there_first_are_seen_before_the_first_job_is_placed(make):
    """Nothing may be put on a device that somebody uses because nobody has looked yet."""
    machine = make(f"process 0 Compute {os.getpid()} {30 * GB}")
    assert machine.devices_of("--gpus", 1) == [uuid(1)]


def test_what_its_own_jobs_use_is_theirs(two):
    holding = two.hold("--gpu-mem", "10GB")
    job = two.running(holding)
    (pid,) = [one.pid for one in two.processes() if one.info["cmdline"][:2] == ["sh", "-c"]]
    (device,) = job["gpus"]
    index = [uuid(0), uuid(1)].index(device)
    other = os.getpid()
    two.scenario(
        f"process {index} Compute {pid} {9 * GB}", f"process {1 - index} Compute {other} 5"
    )
    until(lambda: two.gpus()[uuid(1 - index)]["foreign_memory_bytes"] == 5)
    assert two.gpus()[device]["foreign_memory_bytes"] == 0
    two.scenario()
    two.let_go(holding)


# ---- faults


def test_a_device_that_is_lost_ends_its_job_and_no_other_and_comes_back(two):
    """Rows 66 and 73."""
    ids = [two.hold("--gpus", 1) for _ in range(2)]
    first = two.running(ids[0])["gpus"][0]
    two.running(ids[1])
    two.scenario(f"fail 0 {LOST}")
    lost, kept = ids if first == uuid(0) else reversed(ids)
    job = two.wait(lost)[lost]
    assert (job["state"], job["reason"]) == ("failed", "device_lost"), job
    assert uuid(0) in job["message"]
    assert two.state(kept) == "running"
    assert two.health() == ["lost", "ok"]
    assert any(uuid(0) in problem for problem in two.problems())
    two.let_go(kept)
    assert two.devices_of("--gpus", 1) == [uuid(1)]

    waits = two.hold("--gpus", 2)
    assert two.state(waits) == "queued"
    two.scenario()
    well = time.monotonic()
    assert two.running(waits)["gpus"] == [uuid(0), uuid(1)]
    assert time.monotonic() - well > 8, "it was not watched for a while before"
    assert not any("GPU" in problem for problem in two.problems())
    two.let_go(waits)


def test_a_device_that_is_lost_may_be_tried_elsewhere(two):
    id = two.hold("--gpus", 1, "--retries", 1, "--retry-on", "device_lost")
    (had,) = two.running(id)["gpus"]
    two.scenario(f"fail {[uuid(0), uuid(1)].index(had)} {LOST}")
    job = until(lambda: len((job := two.job(id))["attempts"]) == 2 and job, seconds=60)
    assert job["attempts"][0]["reason"] == "device_lost"
    assert two.running(id)["gpus"] == [uuid(1) if had == uuid(0) else uuid(0)]
    two.let_go(id)


def test_a_job_that_crashes_on_a_device_leaves_it_well(two):
    """Row 67: what the application did is no fault of the device."""
    done = two.run(*SMALL, "--gpus", 1, "--", "sh", "-c", "kill -SEGV $$")
    assert done.returncode == 139
    assert two.health() == ["ok", "ok"]
    assert two.devices_of("--gpus", 2) == [uuid(0), uuid(1)]


def test_a_driver_that_does_not_work_offers_nothing_and_says_so(make):
    """Row 68 and G8; and once it works the devices are there."""
    machine = make("init 9")
    assert machine.run(*SMALL, "--", "echo", "works").stdout == "works\n"
    assert machine.node()["total"].get("gpu", 0) == 0
    assert machine.run(*SMALL, "--gpus", 1, "--", "true").returncode == 125
    for command in ("status", "doctor"):
        assert "driver is there but does not work" in machine.grid(command).stdout
    machine.scenario()
    until(lambda: machine.node()["total"].get("gpu", 0) == 2)
    assert machine.devices_of("--gpus", 1)[0] in (uuid(0), uuid(1))


def test_a_driver_that_breaks_after_a_restart_does_not_leave_the_old_capacity(two):
    assert two.node()["available"]["gpu"] == 2
    two.grid("stop", check=0)
    until(lambda: not two.processes())
    two.scenario("init 9")
    assert two.status()["available"].get("gpu", 0) == 0
    assert any("does not work" in problem for problem in two.problems())


def test_a_driver_that_breaks_while_a_job_runs_leaves_that_alone(two):
    id = two.hold("--gpus", 1)
    two.running(id)
    two.scenario(
        "init 9", f"fail 0 {LOST.replace('15', '999')}", f"fail 1 {LOST.replace('15', '999')}"
    )
    until(lambda: two.health() == ["sick", "sick"])
    assert two.state(id) == "running"
    two.scenario()
    two.let_go(id)
    until(lambda: two.health() == ["ok", "ok"])


def test_memory_that_is_not_given_back_keeps_the_device_out_until_it_is(two):
    """Row 72: whoever comes next is not put on it, however soon it comes."""
    id = two.hold("--gpus", 1)
    (device,) = two.running(id)["gpus"]
    index = [uuid(0), uuid(1)].index(device)
    two.scenario(f"used {index} {20 * GB}")
    two.let_go(id)
    next_one = two.hold("--gpus", 1)
    assert two.running(next_one)["gpus"] == [uuid(1 - index)]
    assert two.health()[index] == "sick"
    assert any("in use that no process has" in problem for problem in two.problems())
    two.let_go(next_one)
    waits = two.hold("--gpus", 2)
    assert two.state(waits) == "queued"
    two.scenario()
    assert len(two.running(waits)["gpus"]) == 2
    two.let_go(waits)


MASKS = {
    "one by its number": ("1", [uuid(1)]),
    "one by its uuid": (uuid(1), [uuid(1)]),
    "none": ("", []),
}


@pytest.mark.parametrize(("mask", "offered"), MASKS.values(), ids=MASKS)
def test_what_the_agent_itself_may_not_see_is_not_offered(make, mask, offered):
    """Row 70."""
    machine = make(CUDA_VISIBLE_DEVICES=mask)
    assert [gpu["id"] for gpu in machine.node()["gpus"]] == offered
    if offered:
        assert machine.devices_of("--gpus", 1) == offered
    assert machine.run(*SMALL, "--gpus", 2, "--", "true").returncode == 125


def test_another_order_after_a_restart_moves_nothing(two):
    """Row 69: the ledger and the job know a device by its UUID, whatever its number is now."""
    held = two.hold("--gpus", 1)
    (device,) = two.running(held)["gpus"]
    two.kill(two.controller)
    two.kill(two.agent)
    two.devices = list(reversed(TWO))
    two.scenario()
    other = uuid(1) if device == uuid(0) else uuid(0)
    assert two.devices_of("--gpus", 1) == [other]
    assert two.job(held)["gpus"] == [device]
    numbers = {gpu["id"]: gpu["index"] for gpu in two.node()["gpus"]}
    assert numbers == {uuid(0): 1, uuid(1): 0}
    two.let_go(held)


def test_what_is_lost_while_nobody_stands_there_is_found(two):
    """The agent is dead when the device goes: the next one sees it, and ends the job."""
    held = two.hold("--gpus", 1)
    (device,) = two.running(held)["gpus"]
    two.scenario(f"fail {[uuid(0), uuid(1)].index(device)} {LOST}")
    two.kill(two.agent)
    job = two.wait(held)[held]
    assert job["reason"] == "device_lost"
