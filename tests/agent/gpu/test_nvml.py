"""GPUs: found, failing, lost, used by strangers, hidden; and drivers that are absent or broken.

The real nvidia-ml-py speaks to a library of our own, which tells what the test wants it to.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[2] / "support"
GB = 10**9
COMPILER = shutil.which("cc") or shutil.which("gcc")

needs_compiler = pytest.mark.skipif(
    COMPILER is None, reason="there is no C compiler to build the stand-in for the driver with"
)


def uuid(index):
    return f"GPU-0000000{index}-aaaa-bbbb-cccc-00000000000{index}"


# Eight devices of three kinds, the youngest with a capability that sorts wrongly as text.
MODELS = [("NVIDIA A100-SXM4-40GB", 40, "8 0")] * 4 + [("Tesla T4", 16, "7 5")] * 3
MODELS += [("NVIDIA B200", 180, "10 0")]
EIGHT = "".join(
    f"device {uuid(index)} {gigabytes * GB} {capability} {model}\n"
    for index, (model, gigabytes, capability) in enumerate(MODELS)
)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Folders with a library of today, and with one of some years ago."""
    made = {}
    for kind in ("new", "old"):
        made[kind] = tmp_path_factory.mktemp(kind)
        flags = ["-DOLD"] if kind == "old" else []
        target = made[kind] / "libnvidia-ml.so.1"
        source = SUPPORT / "nvml_standin.c"
        subprocess.run([COMPILER, "-shared", "-fPIC", *flags, source, "-o", target], check=True)
    return made


class Machine:
    """A machine as far as its GPUs go: a library, a scenario, and an environment."""

    def __init__(self, folder):
        self.folder = folder
        self.root = folder / "root"
        self.root.mkdir()

    def look(self, *steps, library, scenario="", **environ):
        """What the steps gave, each in turn."""
        path = self.folder / "scenario"
        path.write_text(scenario)
        kept = {name: text for name, text in os.environ.items() if not name.startswith("CUDA_")}
        done = subprocess.run(
            [sys.executable, SUPPORT / "nvml_probe.py"],
            input=json.dumps(steps),
            env=kept
            | {
                "LD_LIBRARY_PATH": str(library),
                "NVML_STANDIN": str(path),
                "NVML_ROOT": str(self.root),
            }
            | environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


@pytest.fixture
def look(machine, libraries):
    """Looks at eight devices and what is added to them, through a library of today."""

    def look(*steps, scenario="", library="new", **environ):
        return machine.look(
            *steps, library=libraries[library], scenario=EIGHT + scenario, **environ
        )

    return look


def health(found):
    return [gpu["health"] for gpu in found["gpus"]]


@needs_compiler
def test_devices_have_an_identity_and_a_kind(look):
    [found] = look(["devices"])
    assert found["problems"] == []
    assert [gpu["id"] for gpu in found["gpus"]] == [uuid(index) for index in range(8)]
    assert [gpu["index"] for gpu in found["gpus"]] == list(range(8))
    assert [gpu["model"] for gpu in found["gpus"]] == ["A100"] * 4 + ["T4"] * 3 + ["B200"]
    assert found["gpus"][4]["memory_bytes"] == 16 * GB
    assert found["gpus"][7]["capability"] == [10, 0]
    assert health(found) == ["ok"] * 8


@needs_compiler
def test_a_node_has_the_devices(look, tmp_path):
    [found] = look(["discover", str(tmp_path)])
    assert found["problems"] == []
    assert "gpu=8 gpu_memory=388GB" in found["node"]


@needs_compiler
def test_a_node_tells_what_is_wrong_with_its_devices(look, tmp_path):
    [found] = look(["discover", str(tmp_path)], scenario="fail 2 nvmlDeviceGetName 999\n")
    assert [device for _, _, device in found["problems"]] == [uuid(2)]


#    what it shows                                 what fails, and how                        health   the problem says
FAILING = {
    "a device that cannot be opened is sick":     ("nvmlDeviceGetHandleByIndex_v2 999",      "sick",  "cannot be opened: Unknown Error"),
    "one that must not be opened says how to":    ("nvmlDeviceGetHandleByIndex_v2 4",        "sick",  "Let this user read and write /dev/nvidiactl"),
    "one without a model is sick":                ("nvmlDeviceGetName 999",                  "sick",  "cannot tell its model"),
    "one without a UUID is sick":                 ("nvmlDeviceGetUUID 999",                  "sick",  "cannot tell its UUID"),
    "one that hides its memory is sick":          ("nvmlDeviceGetMemoryInfo 999",            "sick",  "cannot tell its memory"),
    "one that hides its capability is sick":      ("nvmlDeviceGetCudaComputeCapability 999", "sick",  "cannot tell its capability"),
    "one that wants a reset is sick":             ("nvmlDeviceGetMemoryInfo 16",             "sick",  "GPU requires restart"),
    "one that fell off the bus is lost":          ("nvmlDeviceGetHandleByIndex_v2 15",       "lost",  "GPU is lost"),
    "also if that shows only later":              ("nvmlDeviceGetRemappedRows 15",           "lost",  "GPU is lost"),
    "an error that has no name here has NVML's":  ("nvmlDeviceGetMemoryInfo 23",             "sick",  "Insufficient Resources"),
    "not to tell the capability is allowed":      ("nvmlDeviceGetCudaComputeCapability 3",   "ok",    None),
    "not to tell the memory is told":             ("nvmlDeviceGetMemoryInfo 3",              "ok",    "is not known. Ask for it whole"),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(("fails", "becomes", "says"), FAILING.values(), ids=FAILING)
def test_one_device_fails_and_the_others_are_fine(look, fails, becomes, says):
    [found] = look(["devices"], scenario=f"fail 2 {fails}\n")
    assert health(found) == ["ok", "ok", becomes, *["ok"] * 5]
    assert len(found["problems"]) == (says is not None)
    for what, hint, device in found["problems"]:
        assert says in f"{what}. {hint}"
        assert device in (uuid(2), "here/2")
        assert hint


@needs_compiler
def test_bad_memory_that_could_not_be_replaced_makes_a_device_sick(look):
    [found] = look(["devices"], scenario="remapped 0 1 0\nremapped 1 1 1\n")
    assert health(found) == ["ok", "sick", *["ok"] * 6]
    pending, failed = [what for what, _, _ in found["problems"]]
    assert "at its next reset" in pending
    assert "could not replace" in failed


@needs_compiler
def test_a_device_cut_into_instances_is_not_offered_as_a_whole(look):
    [found] = look(["devices"], scenario="mig 3\n")
    assert health(found) == ["ok"] * 3 + ["sick"] + ["ok"] * 4
    [[what, hint, device]] = found["problems"]
    assert "MIG" in what
    assert "nvidia-smi" in hint
    assert device == uuid(3)


@needs_compiler
def test_ids_are_valid_and_unlike_whatever_devices_say(machine, libraries):
    scenario = (
        f"device {uuid(0)} 1000 8 0 A|B\t\x07\ndevice {uuid(0)} 1000 8 0 twin\n"
        "device - 1000 8 0 none\ndevice {bad} 1000 8 0 bad\n"
    )
    [found] = machine.look(["devices"], library=libraries["new"], scenario=scenario)
    assert [gpu["id"] for gpu in found["gpus"]] == [uuid(0), f"{uuid(0)}:1", "here/2", "here/3"]
    assert found["gpus"][0]["model"] == "A?B??"
    assert health(found) == ["ok", "sick", "ok", "ok"]
    assert [device for _, _, device in found["problems"]] == [f"{uuid(0)}:1", "here/3"]


@needs_compiler
def test_a_name_that_is_no_text_is_a_problem_and_no_crash(machine, libraries):
    scenario = machine.folder / "bytes"
    scenario.write_bytes(f"device {uuid(0)} 1000 8 0 ".encode() + b"\xff\xfe\n")
    [found] = machine.look(["devices"], library=libraries["new"], NVML_STANDIN=str(scenario))
    assert health(found) == ["sick"]
    assert "cannot tell its model" in found["problems"][0][0]


@needs_compiler
def test_a_device_lost_while_we_run_keeps_its_id(look):
    before, after, again = look(["devices"], ["devices"], ["devices"], scenario="lost 5 9\n")
    assert health(before) == ["ok"] * 8
    assert health(after) == health(again) == ["ok"] * 5 + ["lost"] + ["ok"] * 2
    assert after["gpus"][5] == before["gpus"][5] | {"health": "lost"}
    [[what, hint, device]] = after["problems"]
    assert device == uuid(5)
    assert "GPU is lost" in what
    assert "Xid" in hint


@needs_compiler
def test_a_device_that_is_no_longer_listed_is_lost(look):
    fewer = "".join(line for line in EIGHT.splitlines(True) if uuid(2) not in line)
    before, _, after = look(["devices"], ["scenario", fewer], ["devices"])
    states = {gpu["id"]: gpu["health"] for gpu in after["gpus"]}
    assert states == {uuid(index): "lost" if index == 2 else "ok" for index in range(8)}
    assert len(before["gpus"]) == 8
    assert [device for _, _, device in after["problems"]] == [uuid(2)]


@needs_compiler
def test_a_device_that_was_mended_is_well_again(look):
    sick = EIGHT + "fail 1 nvmlDeviceGetHandleByIndex_v2 999\n"
    first, _, second, _, third = look(
        ["devices"], ["scenario", sick], ["devices"], ["scenario", EIGHT], ["devices"]
    )
    assert health(second) == ["ok", "sick"] + ["ok"] * 6
    assert third == first


@needs_compiler
def test_one_that_was_known_by_number_alone_gets_its_uuid_when_mended(look):
    first, _, second = look(
        ["devices"],
        ["scenario", EIGHT],
        ["devices"],
        scenario="fail 1 nvmlDeviceGetHandleByIndex_v2 999\n",
    )
    assert first["gpus"][1]["id"] == "here/1"
    assert [gpu["id"] for gpu in second["gpus"]] == [uuid(index) for index in range(8)]
    assert second["problems"] == []


USERS = f"""\
process 0 Compute 100 {3 * GB}
process 0 Compute 200 {10 * GB}
process 1 Compute 100 {2 * GB}
process 2 Graphics 300 {GB}
process 3 Compute 400 {4 * GB}
process 3 Graphics 400 {4 * GB}
used 3 {4 * GB}
used 4 {5 * GB}
process 5 Compute 500 -1
process 5 Compute 100 {GB}
used 5 {7 * GB}
process 6 Compute 500 -1
used 6 0
process 7 Compute 100 -1
used 7 {GB}
reserved 7 {GB}
"""

#    what it shows                               device, used, own, strangers', nobody's (GB)
USES = {
    "our own are told from strangers":          (0, 13, 3, 10, 0),
    "our own are no strangers":                 (1, 2, 2, 0, 0),
    "who draws is a user, too":                 (2, 1, 0, 1, 0),
    "who computes and draws counts once":       (3, 4, 0, 4, 0),
    "memory may belong to no process":          (4, 5, 0, 0, 5),
    "who does not tell may have all the rest":  (5, 7, 1, 6, 0),
}  # fmt: skip


@pytest.fixture(scope="module", params=["new", "old"])
def users(request, libraries, tmp_path_factory):
    machine = Machine(tmp_path_factory.mktemp("users"))
    _, use = machine.look(
        ["devices"],
        ["memory", [100, 999]],
        library=libraries[request.param],
        scenario=EIGHT + USERS,
    )
    return request.param, use


@needs_compiler
@pytest.mark.parametrize(("index", "used", "own", "foreign", "nobody"), USES.values(), ids=USES)
def test_who_uses_a_device(users, index, used, own, foreign, nobody):
    _, use = users
    assert use["problems"] == []
    assert use["devices"][uuid(index)] == [used * GB, own * GB, foreign * GB, nobody * GB]
    assert use["foreign"].get(uuid(index)) == (foreign * GB or None)


@needs_compiler
def test_a_stranger_that_tells_nothing_is_still_there(users):
    assert users[1]["foreign"][uuid(6)] > 0


@needs_compiler
def test_what_the_driver_keeps_is_nobodys_use_where_it_can_be_told(users):
    library, use = users
    assert use["devices"][uuid(7)][0] == (GB if library == "new" else 2 * GB)


@needs_compiler
def test_a_device_that_hides_its_users_is_taken_as_used(look):
    _, use, found = look(
        ["devices"],
        ["memory", []],
        ["devices"],
        scenario="fail 4 nvmlDeviceGetComputeRunningProcesses_v3 999\n"
        "fail 5 nvmlDeviceGetComputeRunningProcesses_v3 3\n",
    )
    assert use["foreign"] == {uuid(4): 16 * GB}
    assert [device for _, _, device in use["problems"]] == [uuid(4), uuid(5)]
    assert health(found) == ["ok"] * 8


@needs_compiler
def test_a_device_without_a_sum_uses_what_its_processes_do(look):
    _, use = look(
        ["devices"],
        ["memory", [1]],
        scenario=f"fail 0 nvmlDeviceGetMemoryInfo_v2 3\nused 0 {9 * GB}\n"
        f"process 0 Compute 1 {GB}\nprocess 0 Compute 2 {2 * GB}\n",
    )
    assert use["devices"][uuid(0)] == [3 * GB, GB, 2 * GB, 0]
    assert use["problems"] == []


@needs_compiler
def test_a_device_lost_while_its_use_is_read_is_told_both_times(look):
    _, use, found = look(["devices"], ["memory", []], ["devices"], scenario="lost 6 7\n")
    assert use["foreign"] == {uuid(6): 16 * GB}
    assert "GPU is lost" in use["problems"][0][0]
    assert health(found)[6] == "lost"


@needs_compiler
def test_a_session_may_be_closed_and_opened_again(look):
    first, _, nothing, second = look(["devices"], ["close"], ["memory", []], ["devices"])
    assert first == second
    assert nothing["devices"] == {}


def test_without_a_driver_there_are_no_gpus_and_no_problem(machine):
    found, imported = machine.look(["devices"], ["imported"], library=machine.root)
    assert found == {"gpus": [], "problems": []}
    assert not imported  # nobody pays for what is not there


def test_a_kernel_driver_without_its_library_is_a_problem(machine):
    version = machine.root / "proc/driver/nvidia/version"
    version.parent.mkdir(parents=True)
    version.write_text("NVRM version: …")
    [found] = machine.look(["devices"], library=machine.root)
    [[what, hint, _]] = found["problems"]
    assert "libnvidia-ml.so.1 is not there" in what
    assert "container" in hint


def test_a_library_that_cannot_be_loaded_is_a_problem(machine):
    (machine.root / "libnvidia-ml.so.1").write_text("this is no library")
    [found] = machine.look(["devices"], library=machine.root)
    assert found["gpus"] == []
    [[what, hint, _]] = found["problems"]
    assert "libnvidia-ml.so.1" in what
    assert "Install the driver's library again" in hint


#    what it shows                          code   what it says                how to mend it
BROKEN = {
    "the module is not loaded":            (9,    "Driver Not Loaded",         "modprobe nvidia"),
    "the driver was updated":              (18,   "NVML/RM version mismatch",  "reboot"),
    "devices may not be opened":           (4,    "Insufficient Permissions",  "/dev/nvidiactl"),
    "the system blocks it":                (17,   "has blocked the request",   "container"),
    "anything else leads to nvidia-smi":   (999,  "Unknown Error",             "nvidia-smi"),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(("code", "says", "mend"), BROKEN.values(), ids=BROKEN)
def test_a_broken_driver_says_what_is_broken(look, code, says, mend):
    [found] = look(["devices"], scenario=f"init {code}\n")
    assert found["gpus"] == []
    [[what, hint, _]] = found["problems"]
    assert says in what
    assert mend in hint


@needs_compiler
def test_a_driver_that_breaks_later_makes_known_devices_sick(look):
    failing = EIGHT + "init 18\nshutdown 999\nfail 0 nvmlDeviceGetUUID 999\n"
    first, _, one_sick, broken, _, well = look(
        ["devices"],
        ["scenario", failing],
        ["devices"],
        ["devices"],
        ["scenario", EIGHT],
        ["devices"],
    )
    assert health(one_sick) == ["sick"] + ["ok"] * 7
    assert health(broken) == ["sick"] * 8
    assert "version mismatch" in broken["problems"][0][0]
    assert well == first


#    what it shows                                 the mask                   offered                  problems
MASKS = {
    "a number":                                   ("1",                       [1],                     0),
    "several, in any order":                      ("3,1",                     [1, 3],                  0),
    "a UUID":                                     (uuid(6),                   [6],                     0),
    "the beginning of a UUID":                    ("GPU-00000004",            [4],                     0),
    "a beginning that several have ends it":      ("GPU-0,1",                 [],                      1),
    "an empty mask hides all":                    ("",                        [],                      0),
    "minus one hides all":                        ("-1",                      [],                      0),
    "what follows on nonsense is hidden":         ("0,99,1",                  [0],                     1),
    "words mean nothing":                         ("all",                     [],                      1),
}  # fmt: skip


@needs_compiler
@pytest.mark.parametrize(("mask", "left", "problems"), MASKS.values(), ids=MASKS)
def test_only_what_we_may_see_ourselves_is_offered(look, mask, left, problems):
    found, use = look(
        ["devices"],
        ["memory", []],
        CUDA_VISIBLE_DEVICES=mask,
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    assert [gpu["index"] for gpu in found["gpus"]] == left
    assert sorted(use["devices"]) == [uuid(index) for index in left]
    assert len(found["problems"]) == problems


@needs_compiler
def test_numbers_in_cudas_own_order_are_questioned(look):
    [found] = look(["devices"], CUDA_VISIBLE_DEVICES="1")
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found["problems"][0][1]


@needs_compiler
def test_when_numbers_change_nobody_elses_device_becomes_ours(look):
    fewer = "".join(line for line in EIGHT.splitlines(True) if uuid(1) not in line)
    _, _, found = look(
        ["devices"],
        ["scenario", fewer],
        ["devices"],
        CUDA_VISIBLE_DEVICES="1",
        CUDA_DEVICE_ORDER="PCI_BUS_ID",
    )
    assert [(gpu["id"], gpu["health"]) for gpu in found["gpus"]] == [(uuid(1), "lost")]
    assert any("has vanished" in what for what, _, _ in found["problems"])


@needs_compiler
def test_a_sick_device_of_others_is_not_our_problem(look):
    [found] = look(
        ["devices"],
        scenario="fail 2 nvmlDeviceGetMemoryInfo 999\n",
        CUDA_VISIBLE_DEVICES=uuid(1),
    )
    assert health(found) == ["ok"]
    assert found["problems"] == []
