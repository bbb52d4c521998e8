"""The public openb traces: how full the default strategy gets a real cluster.

The traces are not part of the project. GRIDHAND_OPENB says in which folder they are.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from gridhand.cli.commands.simulate import simulate

FOLDER = Path(os.environ.get("GRIDHAND_OPENB", ""))
needs_traces = pytest.mark.skipif(
    "GRIDHAND_OPENB" not in os.environ, reason="GRIDHAND_OPENB does not name the traces' folder"
)

#    trace          FGD as published, at 100 % and at the end; by how much to be ahead
PUBLISHED = {
    "default":     (0.9523, 0.9539, 0.005),
    "cpu100":      (0.9521, 0.9535, 0.005),
    "gpushare40":  (0.9396, 0.9415, 0.005),
    "multigpu20":  (0.9553, 0.9565, 0.005),
    "gpuspec20":   (0.9466, 0.9484, 0.010),
}  # fmt: skip


def run(trace, *options):
    nodes, tasks = FOLDER / "openb_node_list_gpu_node.csv", FOLDER / f"openb_pod_list_{trace}.csv"
    args = ["--nodes", str(nodes), "--tasks", str(tasks), "--json", *options]
    done = CliRunner().invoke(simulate, args, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)["strategies"]


@pytest.mark.soak
@needs_traces
@pytest.mark.parametrize("trace", PUBLISHED)
def test_it_is_ahead_of_published_fgd(trace, capsys):
    at_100, end, ahead = PUBLISHED[trace]
    found = run(trace, "--seeds", "1-5")["fragmentation"]["gpu_allocation"]
    with capsys.disabled():
        print(f"\n{trace}: {found['at_100']:.2%} at 100 %, {found['end']:.2%} at the end")
    assert found["at_100"] >= at_100 + ahead
    assert found["end"] >= end + ahead


@pytest.mark.soak
@needs_traces
def test_with_departures_the_cluster_stays_over_80_percent_full(capsys):
    options = ["--departures", "--load", "1.0", "--seeds", "1"]
    found = run("default", *options, "--strategy", "fragmentation", "--strategy", "best_fit")
    means = {name: one["gpu_allocation"]["mean"] for name, one in found.items()}
    with capsys.disabled():
        print(f"\nGPU allocation over time at load 1.0: {means}")
    assert means["fragmentation"] > max(0.8, means["best_fit"])
