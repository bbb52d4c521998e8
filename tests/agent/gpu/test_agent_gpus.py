"""GPUs under an agent: lost ones, those that strangers use, and those not given back."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from gridhand.agent.hardware.strangers import owner_name

SUPPORT = Path(__file__).parents[2] / "support"
GB = 10**9
COMPILER = shutil.which("cc") or shutil.which("gcc")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="there is no C compiler to build the stand-in for the driver with")  # fmt: skip


def uuid(index):
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-00000000000{index}"


TWO = "".join(f"device {uuid(index)} {40 * GB} 8 0 NVIDIA A100\n" for index in range(2))


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    made = tmp_path_factory.mktemp("driver")
    command = [COMPILER, "-shared", "-fPIC", SUPPORT / "nvml_standin.c", "-o", made / "libnvidia-ml.so.1"]  # fmt: skip
    subprocess.run(command, check=True)
    return made


@pytest.fixture
def scenario(node, library, monkeypatch):
    """Sets what the machine is like, from the beginning two devices that are well."""
    path = node.path / "scenario"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    node.env = {"LD_LIBRARY_PATH": str(library), "NVML_STANDIN": str(path)}

    def scenario(*lines):
        new = path.with_suffix(".new")
        new.write_text(TWO + "".join(f"{line}\n" for line in lines))
        new.replace(path)

    scenario()
    yield scenario
    scenario()  # so that the agent ends in peace


def health(event):
    return [one["health"] for one in event["node"]["devices"]]


def test_a_job_sees_its_devices(node, scenario):
    agent = node.connect()
    assert [one["id"] for one in agent.greeting["node"]["devices"]] == [uuid(0), uuid(1)]
    script = "echo $CUDA_VISIBLE_DEVICES $GRIDHAND_GPU_MEMORY_BYTES"
    agent.start(node.order("j", "/bin/sh", "-c", script, devices=[uuid(1)], gpu_memory={uuid(1): GB}))  # fmt: skip
    assert agent.end("j")["code"] == 0
    assert node.output("j").decode().split() == [uuid(1), str(GB)]


def test_a_lost_device_ends_its_job_and_no_other(node, scenario):
    agent = node.connect()
    first, first_said, _ = node.held("first", devices=[uuid(0)])
    other, other_said, other_held = node.held("other", devices=[uuid(1)])
    agent.start(first, other)
    first_said.hear()
    other_said.hear()
    scenario("fail 0 nvmlDeviceGetHandleByIndex_v2 15")
    event = agent.event("node", lambda event: "lost" in health(event))
    assert health(event) == ["lost", "ok"]
    assert "GPU is lost" in event["problems"][0]["message"]
    end = agent.end("first")
    assert end["reason"] == "device_lost"
    assert uuid(0) in end["message"]
    other_held.open()
    assert agent.end("other")["code"] == 0


def test_what_strangers_use_is_told(node, scenario):
    agent = node.connect()
    scenario(f"process 1 Compute 1 {3 * GB}")
    event = agent.event("usage", lambda event: event["foreign"])
    assert event["foreign"] == {uuid(1): 3 * GB}
    scenario()
    agent.event("usage", lambda event: not event["foreign"])


def test_what_its_own_jobs_use_is_not_foreign(node, scenario):
    agent = node.connect()
    order, said, held = node.held("j", devices=[uuid(0)])
    agent.start(order)
    pid = int(said.hear())
    scenario(f"process 0 Compute {pid} {3 * GB}", f"process 1 Compute 1 {GB}")
    event = agent.event("usage", lambda event: event["foreign"])
    assert event["foreign"] == {uuid(1): GB}
    scenario()
    held.open()
    agent.end("j")


def test_how_busy_devices_are_is_told_with_whose_processes_they_run(node, scenario):
    agent = node.connect()
    agent.ask("sample", every_ms=1000, for_ms=600_000)
    order, said, held = node.held("j", devices=[uuid(0)])
    agent.start(order)
    pid = int(said.hear())
    scenario(
        "busy 0 45",
        "heat 0 61 250400",
        f"process 0 Compute {pid} {3 * GB}",
        f"process 1 Compute {os.getpid()} {GB}",
        "fail 1 nvmlDeviceGetPowerUsage 3",  # this kind cannot tell it
    )
    event = agent.event("usage", lambda event: len(event["gpus"][uuid(1)]["processes"]) == 1)
    first, second = event["gpus"][uuid(0)], event["gpus"][uuid(1)]
    told = first["utilization"], first["temperature_c"], first["power_w"], first["memory_bytes"]
    assert told == (45.0, 61.0, 250.4, 3 * GB)
    [ours], [other] = first["processes"], second["processes"]
    assert (ours["pid"], ours["job"], ours["memory_bytes"]) == (pid, "j", 3 * GB)
    assert (other["pid"], other["job"]) == (os.getpid(), None)
    assert other["user"] == owner_name(os.getpid())
    assert (second["utilization"], second["power_w"]) == (0.0, None)
    scenario()
    held.open()
    agent.end("j")


def test_a_device_that_does_not_tell_how_busy_it_is_is_used_and_told_once(node, scenario):
    agent = node.connect()
    agent.ask("sample", every_ms=1000, for_ms=600_000)
    scenario("fail 0 nvmlDeviceGetUtilizationRates 4")
    event = agent.event("node", lambda event: event["problems"])
    assert "cannot tell how busy it is" in event["problems"][0]["message"]
    assert health(event) == ["ok", "ok"]
    usage = agent.event("usage", lambda event: event["gpus"][uuid(0)]["utilization"] is None)
    assert usage["gpus"][uuid(0)]["temperature_c"] == 30.0
    agent.event("usage")
    assert not [event for event in agent.events if event.get("event") == "node"]


def test_memory_that_is_not_given_back_keeps_the_device_out(node, scenario):
    agent = node.connect()
    order, said, held = node.held("j", devices=[uuid(0)])
    agent.start(order)
    said.hear()
    scenario(f"used 0 {20 * GB}")
    held.open()
    event = agent.event("node")  # before the end, so that nobody is given it meanwhile
    assert health(event) == ["sick", "ok"]
    assert "in use that no process has" in event["problems"][0]["message"]
    assert agent.end("j")["code"] == 0


def test_a_driver_that_fails_is_told_and_offers_nothing(node, scenario):
    (node.path / "scenario").write_text("init 9\n")
    agent = node.connect()
    assert agent.greeting["node"]["devices"] == []
    assert "driver" in agent.greeting["problems"][0]["message"]
    scenario()
    event = agent.event("node", lambda event: event["node"]["devices"])
    assert health(event) == ["ok", "ok"]
    assert event["problems"] == []
