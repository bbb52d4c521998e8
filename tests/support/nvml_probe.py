"""Looks at the GPUs of a machine that a test makes up, in a process of its own.

The library is found by its name, once for a process, so each test needs another one. It reads
steps as JSON from its input, takes each with one `Nvml`, and writes what they gave as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from gridhand.agent.gpu.nvml import Nvml
from gridhand.agent.hardware.discovery import discover


def main() -> None:
    steps = json.load(sys.stdin)
    nvml = Nvml(root=Path(os.environ["NVML_ROOT"]))
    json.dump([take(nvml, *step) for step in steps], sys.stdout)


def take(nvml, verb, argument=None):
    match verb:
        case "devices":
            found = nvml.devices("here")
            return {"gpus": [asdict(gpu) for gpu in found.gpus], "problems": told(found)}
        case "memory":
            use = nvml.memory(set(argument))
            devices = {
                id: [one.used_bytes, one.own_bytes, one.foreign_bytes, one.unexplained_bytes]
                for id, one in use.devices.items()
            }
            return {"devices": devices, "foreign": use.foreign, "problems": told(use)}
        case "discover":
            found = discover(Path(argument), nvml=nvml)
            return {"node": str(found.node.total), "problems": told(found)}
        case "scenario":
            Path(os.environ["NVML_STANDIN"]).write_text(argument)
        case "close":
            nvml.close()
        case "imported":
            return "pynvml" in sys.modules
    return None


def told(found):
    return [[problem.what, problem.hint, problem.device] for problem in found.problems]


main()
