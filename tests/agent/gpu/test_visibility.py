"""What a job is told of its devices."""

import pytest

from gridhand.agent.gpu.visibility import visible, visible_environment
from gridhand.core.model.gpus import Gpu

ONE = "GPU-11111111-aaaa-bbbb-cccc-000000000001"
TWO = "GPU-22222222-aaaa-bbbb-cccc-000000000002"
CUT = "MIG-33333333-aaaa-bbbb-cccc-000000000003"

#    what it shows                           devices                                  the variable
CASES = {
    "a device is named by its UUID":        ([Gpu(ONE, 1)],                           ONE),
    "without one, by its number":           ([Gpu("here/1", 1)],                      "1"),
    "they come in the driver's order":      ([Gpu(TWO, 2), Gpu(ONE, 1)],              f"{ONE},{TWO}"),
    "numbers as well, and not as text":     ([Gpu("here/10", 10), Gpu("here/9", 9)],  "9,10"),
    "there is no mixture":                  ([Gpu(ONE, 1), Gpu("here/2", 2)],         "1,2"),
    "what is almost a UUID is none":        ([Gpu("GPU-1", 4)],                       "4"),
    "nor is more than one":                 ([Gpu(f"{ONE}:4", 4)],                    "4"),
    "an instance has one, too":             ([Gpu(CUT, 0)],                           CUT),
    "no device is an empty list":           ([],                                      ""),
}  # fmt: skip


@pytest.mark.parametrize(("devices", "text"), CASES.values(), ids=CASES)
def test_visible(devices, text):
    assert visible(devices) == text
    assert visible_environment(iter(devices)) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": text,
    }
