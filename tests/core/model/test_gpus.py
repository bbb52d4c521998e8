"""Descriptions of devices, and requests for them."""

import pytest

from gridhand import Gpu, InvalidAmount, InvalidInput, InvalidName, InvalidRequest, Node
from gridhand.core.model.gpus import (
    MOST_DEVICES,
    GpuHealth,
    anonymous_gpus,
    read_capability,
    read_gpu_request,
)
from gridhand.core.model.resources import UNIT, Resources

GB = 10**9


def ask(gpu=0.0, memory=0, model=None, capability=None):
    return read_gpu_request(round(gpu * UNIT), memory, model, capability)


# ---- capabilities


#    the device has   is asked for   fits
CAPABILITIES = {
    "G3 10.0 is more than 9.0":          ("10.0", "9.0",   True),
    "G3 7.5 is less than 8.6":           ("7.5",  "8.6",   False),
    "9.0 is less than 10.0":             ("9.0",  "10.0",  False),
    "the same":                          ("8.6",  "8.6",   True),
    "a bare major is its .0":            ("8.0",  "8",     True),
    "a bare major of the device":        ("8",    "8.0",   True),
    "a float is read as it is written":  (8.6,    "8.6",   True),
    "an int":                            (9,      8.6,     True),
    "8.10 is more than 8.9":             ("8.10", "8.9",   True),
    "8.0 is 8.0.0":                      ("8.0",  "8.0.0", True),
    "8.0.0 is 8.0":                      ("8.0.0", "8.0",  True),
    "an unknown one is less than any":   (None,   "1.0",   False),
    "nobody asked":                      (None,   None,    True),
}  # fmt: skip


@pytest.mark.parametrize(("has", "needs", "fits"), CAPABILITIES.values(), ids=CAPABILITIES)
def test_capabilities_compare_as_versions(has, needs, fits):
    gpu = Gpu(id="d0", capability=read_capability(has))
    assert ask(1, capability=needs).suits(gpu) is fits


@pytest.mark.parametrize(
    "value",
    ["", "x", "8.", ".8", "8.0.0.0", "8,6", "-8", "8.6\n", "٨", True, b"8", [8], 1e300],
    ids=repr,
)
def test_a_capability_that_is_no_version_is_refused(value):
    with pytest.raises(InvalidInput, match="gpu_capability"):
        read_capability(value)


def test_a_model_narrows_the_devices_in_any_case():
    assert ask(1, model="a100").suits(Gpu(id="d", model="A100"))
    assert not ask(1, model="A100").suits(Gpu(id="d", model="H100"))
    assert not ask(1, model="A100").suits(Gpu(id="d"))


# ---- what is asked


#    what it says                       gpu   memory    devices share  memory   exclusive
ASKS = {
    "one whole device":                (1,    0,        1,      UNIT,  None,    True),
    "four whole devices":              (4,    0,        4,      UNIT,  None,    True),
    "a share":                         (0.25, 0,        1,      2500,  None,    False),
    "memory of one device":            (0,    8 * GB,   1,      0,     8 * GB,  False),
    "memory of one device, said":      (1,    8 * GB,   1,      0,     8 * GB,  False),
    "memory on each of two":           (2,    20 * GB,  2,      0,     20 * GB, False),
    "a share and memory":              (0.25, 10 * GB,  1,      2500,  10 * GB, False),
}  # fmt: skip


@pytest.mark.parametrize(
    ("gpu", "memory", "count", "share", "bytes_", "exclusive"), ASKS.values(), ids=ASKS
)
def test_gpu_and_gpu_memory_together_make_the_request(gpu, memory, count, share, bytes_, exclusive):
    asked = ask(gpu, memory)
    assert (asked.devices, asked.share, asked.memory_bytes) == (count, share, bytes_)
    assert asked.exclusive is exclusive


@pytest.mark.parametrize("gpu", [1.5, 1.0001, 2.25, 1023.5])
def test_more_than_one_device_in_part_is_refused(gpu):
    with pytest.raises(InvalidRequest, match="gpu: "):
        ask(gpu)
    with pytest.raises(InvalidRequest, match="gpu: "):
        ask(gpu, GB)


def test_more_devices_than_a_node_can_have_are_refused():
    assert ask(MOST_DEVICES).devices == MOST_DEVICES
    with pytest.raises(InvalidRequest, match="gpu: '1025'"):
        ask(MOST_DEVICES + 1)


def test_a_model_or_capability_without_a_gpu_is_refused():
    with pytest.raises(InvalidRequest, match="A100"):
        ask(model="A100")
    with pytest.raises(InvalidRequest, match=r"8\.6"):
        ask(capability="8.6")
    assert ask() is None


def test_an_ask_says_itself_in_the_words_it_was_made_in():
    assert ask(4).resources() == Resources.of(gpu=4)
    assert ask(0.25).resources() == Resources.of(gpu=0.25)
    assert ask(2, 20 * GB).resources() == Resources.of(gpu=2, gpu_memory="20GB")
    assert ask(0.25, GB).resources() == Resources.of(gpu=0.25, gpu_memory="1GB")


# ---- how devices are described


def test_a_node_with_a_number_of_gpus_has_that_many_anonymous_devices():
    node = Node.of("box", cpu=8, gpu=2, gpu_memory="16GB")
    assert [gpu.id for gpu in node.gpus] == ["box/0", "box/1"]
    assert [gpu.memory_bytes for gpu in node.gpus] == [16 * GB] * 2
    assert node.total == Resources.of(cpu=8, gpu=2, gpu_memory="32GB")
    assert node.capacity == Resources.of(cpu=8)
    assert anonymous_gpus("n", 2, 5) == (
        Gpu("n/0", 0, memory_bytes=5),
        Gpu("n/1", 1, memory_bytes=5),
    )


def test_a_device_has_its_uuid_as_id_or_else_node_and_index():
    node = Node.of(
        "box",
        gpus=[
            {"uuid": "GPU-1", "model": "A100", "memory": "40GB", "capability": "8.0"},
            {"id": "GPU-2", "memory": 40_000},
            {"model": "T4"},
        ],
    )
    assert [gpu.id for gpu in node.gpus] == ["GPU-1", "GPU-2", "box/2"]
    assert [gpu.index for gpu in node.gpus] == [0, 1, 2]
    assert node.gpus[0] == Gpu("GPU-1", 0, "A100", 40 * GB, (8, 0), GpuHealth.OK)
    assert node.gpus[1].memory_bytes == 40 * GB


#    what is wrong                       gpus                                     how it is refused
BAD = {
    "no list":                          ({"model": "A100"},                       InvalidInput),
    "text":                             ("A100",                                  InvalidInput),
    "a number":                         (2,                                       InvalidInput),
    "a list of names":                  (["A100"],                                InvalidInput),
    "an unknown field":                 ([{"ram": "40GB"}],                       InvalidInput),
    "a negative memory":                ([{"memory": -1}],                        InvalidAmount),
    "a memory in a unit there is not":  ([{"memory": "4 QB"}],                    InvalidAmount),
    "no memory but None":               ([{"memory": None}],                      InvalidAmount),
    "an id with a newline":             ([{"id": "a\nb"}],                        InvalidName),
    "an id with SQL":                   ([{"id": "a'; --"}],                      InvalidName),
    "an id of a megabyte":              ([{"id": "a" * 10**6}],                   InvalidName),
    "an id that is a number":           ([{"id": 5}],                             InvalidName),
    "a model with a newline":           ([{"model": "A\n"}],                      InvalidInput),
    "a model of 101":                   ([{"model": "A" * 101}],                  InvalidInput),
    "a model that is a number":         ([{"model": 100}],                        InvalidInput),
    "a capability that is none":        ([{"capability": "eight"}],               InvalidInput),
    "a health there is not":            ([{"health": "fine"}],                    InvalidInput),
    "a health of None":                 ([{"health": None}],                      InvalidInput),
    "the same id twice":                ([{"id": "a"}, {"uuid": "a"}],            InvalidInput),
    "too many":                         ([{}] * (MOST_DEVICES + 1),               InvalidInput),
    "a Gpu with a bad id":              ([Gpu(id="a\nb")],                        InvalidInput),
    "a Gpu with negative memory":       ([Gpu(id="a", memory_bytes=-1)],          InvalidInput),
    "a Gpu with memory in a float":     ([Gpu(id="a", memory_bytes=0.5)],         InvalidInput),
}  # fmt: skip


@pytest.mark.parametrize(("gpus", "kind"), BAD.values(), ids=BAD)
def test_a_device_that_is_described_wrongly_is_refused(gpus, kind):
    with pytest.raises(kind) as caught:
        Node.of("box", cpu=1, gpus=gpus)
    assert caught.value.hint
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize("gpu", [0.5, 1.5, MOST_DEVICES + 1])
def test_a_node_has_whole_devices_and_not_too_many(gpu):
    with pytest.raises(InvalidInput, match="gpu: "):
        Node.of("box", gpu=gpu)


def test_a_number_of_gpus_must_be_that_of_the_list():
    assert len(Node.of("box", gpu=2, gpus=[{}, {}]).gpus) == 2
    with pytest.raises(InvalidRequest, match="gpu: '3'"):
        Node.of("box", gpu=3, gpus=[{}, {}])


def test_gpu_memory_of_a_node_needs_devices_that_have_it():
    with pytest.raises(InvalidRequest, match="gpu_memory"):
        Node.of("box", cpu=1, gpu_memory="40GB")


def test_gpu_memory_beside_a_list_of_devices_is_not_silently_dropped():
    try:
        node = Node.of("box", gpu_memory="40GB", gpus=[{"model": "A100"}])
    except InvalidInput:
        return
    assert node.gpus[0].memory_bytes == 40 * GB
