"""`grid simulate`, as people and scripts meet it."""

import io
import json
import struct
import sys

import click
import pytest

from gridhand.cli.commands import simulate as command
from gridhand.cli.main import COMMANDS, make_cli, run

NODES = "name,count,cpu,memory,gpu,gpu_model\na,2,8,32GB,2,T4\n"
TASKS = "name,count,cpu,memory,gpu\nx,4,1,4GB,0.5\ny,2,2,8GB,1\nz,1,4,8GB,2\nw,2,1,1GB,\n"


@pytest.fixture
def files(tmp_path):
    (tmp_path / "nodes.csv").write_text(NODES)
    (tmp_path / "tasks.csv").write_text(TASKS)
    return ["--nodes", str(tmp_path / "nodes.csv"), "--tasks", str(tmp_path / "tasks.csv")]


def grid(*arguments):
    return run(make_cli(COMMANDS), ["simulate", *arguments])


def answer(capsys, *arguments):
    assert grid(*arguments, "--json") == 0
    out, err = capsys.readouterr()
    assert err == ""
    return json.loads(out)


def test_the_json(files, capsys):
    found = answer(
        capsys, *files, "--strategy", "best_fit", "--strategy", "spread", "--seeds", "1-3"
    )
    strategies = found.pop("strategies")
    assert found == {
        "nodes": 2, "gpus": 4, "tasks": 9, "load": 1.3, "seeds": [1, 2, 3], "departures": False,
    }  # fmt: skip
    assert list(strategies) == ["best_fit", "spread"]
    for one in strategies.values():
        assert list(one) == [
            "gpu_allocation", "cpu_allocation", "memory_allocation", "arrived", "failed",
            "failed_by", "fragmentation", "decisions_per_second",
        ]  # fmt: skip
        for resource in ("gpu", "cpu", "memory"):
            levels = one[f"{resource}_allocation"]
            assert list(levels) == ["at_100", "end", "at"]
            assert list(levels["at"]) == [str(ten) for ten in range(10, 131, 10)]
            assert levels["at"]["100"] == levels["at_100"]
            assert 0 <= levels["at"]["10"] <= levels["at_100"] <= levels["end"] <= 1
        assert sum(one["failed_by"].values()) == pytest.approx(one["failed"])
        assert 0 <= one["fragmentation"] <= 1
        assert one["decisions_per_second"] > 0
        assert 6 <= one["arrived"] <= 9


def test_figures_are_means_over_the_seeds(files, capsys):
    each = [answer(capsys, *files, "--seeds", seed)["strategies"]["fragmentation"] for seed in "12"]
    both = answer(capsys, *files, "--seeds", "1,2")["strategies"]["fragmentation"]
    for pick in (
        lambda one: one["failed"],
        lambda one: one["fragmentation"],
        lambda one: one["gpu_allocation"]["at_100"],
        lambda one: one["cpu_allocation"]["at"]["50"],
        lambda one: one["memory_allocation"]["end"],
    ):
        assert pick(both) == pytest.approx((pick(each[0]) + pick(each[1])) / 2)
    assert each[0] != each[1]


def test_a_load_below_all_there_is_has_no_figures_at_100(files, capsys):
    one = answer(capsys, *files, "--load", "0.55")["strategies"]["fragmentation"]
    assert one["gpu_allocation"]["at_100"] is None
    assert list(one["gpu_allocation"]["at"]) == ["10", "20", "30", "40", "50"]
    assert one["failed"] == 0
    assert one["failed_by"] == {}


def test_tasks_that_come_and_go(files, capsys):
    one = answer(capsys, *files, "--departures", "--seeds", "1")["strategies"]["fragmentation"]
    assert list(one["gpu_allocation"]) == ["mean"]
    assert 0.3 < one["gpu_allocation"]["mean"] < 1
    assert one["failed"] < one["arrived"]


def test_without_gpus_there_are_no_figures_of_them(tmp_path, files, capsys):
    (tmp_path / "nodes.csv").write_text("name,cpu\na,8\n")
    (tmp_path / "tasks.csv").write_text("name,cpu\nx,3\n")
    one = answer(capsys, *files)["strategies"]["best_fit"]
    assert one["gpu_allocation"]["end"] is None
    assert one["memory_allocation"]["at_100"] is None
    assert one["fragmentation"] is None
    assert one["cpu_allocation"]["end"] == 0.75
    assert grid(*files) == 0
    out = capsys.readouterr().out
    assert "GPU" not in out
    assert "CPU" in out


def test_the_tables(files, capsys):
    assert grid(*files, "--strategy", "best_fit", "--strategy", "spread", "--seeds", "1") == 0
    out, err = capsys.readouterr()
    assert err == ""
    found = answer(capsys, *files, "--strategy", "best_fit", "--strategy", "spread", "--seeds", "1")
    best = found["strategies"]["best_fit"]
    lines = out.splitlines()
    assert lines[0] == "2 nodes with 4 GPUs, 9 tasks, load 130 %, seed 1; nothing leaves"
    head = next(line for line in lines if line.startswith("allocated, %"))
    assert head.split()[4:] == [*(str(ten) for ten in range(10, 131, 10)), "end"]
    [row] = [line.split() for line in lines if line.startswith("memory")]
    levels = best["memory_allocation"]
    assert row[1:] == [
        "best_fit",
        *(f"{100 * at:.1f}" for at in [*levels["at"].values(), levels["end"]]),
    ]
    assert sum(line.split()[:1] == ["spread"] for line in lines) == 4  # three resources, and in all
    last = next(line for line in lines if line.startswith("best_fit"))
    assert f"{100 * best['gpu_allocation']['at_100']:.2f}" in last
    assert f"{best['failed']:.0f} of {best['arrived']:.0f}" in last
    assert last.split()[:3] == [
        "best_fit",
        *[f"{100 * best['gpu_allocation'][at]:.2f}" for at in ("at_100", "end")],
    ]
    assert max(map(len, lines)) <= 100


def test_a_great_load_still_fits_on_a_line(files, capsys):
    assert grid(*files, "--load", "7.3") == 0
    head = next(line for line in capsys.readouterr().out.splitlines() if "at load" in line)
    assert {"100", "60", "720"} <= set(head.split())
    assert len(head) <= 110


#    what it shows                     arguments                                 what is said
WRONG = {
    "a strategy that is not there":   (["--strategy", "best"],                   "error: strategy: 'best' is not valid"),
    "no load":                        (["--load", "0"],                          "error: Invalid value for '--load'"),
    "seeds that are none":            (["--seeds", "1-x"],                       "error: Invalid value for '--seeds': '1-x' is not a list of seeds"),
    "seeds backwards":                (["--seeds", "5-1"],                       "error: Invalid value for '--seeds'"),
    "too many seeds":                 (["--seeds", "1-900,1000-1900"],           "more than 1000 seeds"),
    "a picture of another kind":      (["--plot", "x.svg"],                      "error: --plot: 'x.svg' is not valid"),
    "a picture nowhere":              (["--plot", "no/such/folder/x.png"],       "error: --plot: 'no/such/folder/x.png'"),
    "a file that is not there":       (["--tasks", "no-such-file"],              "error: Invalid value for '--tasks'"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "said"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_told(files, capsys, arguments, said):
    assert grid(*files, *arguments) == 125
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert "\nhint: " in err


def test_a_wrong_line_is_named(tmp_path, files, capsys):
    (tmp_path / "tasks.csv").write_text("name,cpu\na,1\nb,lots\n")
    assert grid(*files) == 125
    assert capsys.readouterr().err == (
        "error: tasks.csv, line 3: cpu: 'lots' is not valid\n"
        "hint: Use a number that is not negative, such as 2 or 0.5.\n"
    )


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("7", [7]), ("1-5", [1, 2, 3, 4, 5]), ("1,4,9", [1, 4, 9]), ("3, 1-3", [3, 1, 2]), ("0", [0])],
)
def test_seeds(text, seeds):
    assert command.read_seeds(None, None, text) == seeds


# ---- the picture


def size_of(png):
    """Width and height, as the head of a PNG tells them."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", png[16:24])


def colours(png, top, bottom):
    """How many colours there are between two heights, as parts of the whole, from the top."""
    from matplotlib.image import imread

    picture = imread(io.BytesIO(png))
    rows = picture[int(top * len(picture)) : int(bottom * len(picture)), :, :3]
    return len({tuple(pixel) for row in rows[::3] for pixel in row[::3].tolist()})


@pytest.mark.parametrize("more", [[], ["--departures"]], ids=["filling", "coming and going"])
def test_the_picture(tmp_path, files, capsys, monkeypatch, more):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr("gridhand.simulate.arrivals.LEAST_TURNOVER", 20)
    path = tmp_path / "one.png"
    assert grid(*files, "--seeds", "1", "--strategy", "best_fit", "--plot", str(path), *more) == 0
    one_width, one_height = size_of(path.read_bytes())
    assert one_width == 1650
    head = 0.75 / (one_height / 150)
    curves = (0.75 + 3.6) / (one_height / 150)
    assert colours(path.read_bytes(), head, curves) > 20  # lines and their legend
    assert colours(path.read_bytes(), curves + 0.2, 0.9) > 20  # the cluster
    three = ["--strategy", "best_fit", "--strategy", "spread", "--strategy", "round_robin"]
    assert grid(*files, "--seeds", "1", *three, "--plot", str(path), *more) == 0
    width, height = size_of(path.read_bytes())
    assert width == one_width
    assert height > one_height + 200  # a cluster for each strategy
    assert capsys.readouterr().err == ""


def test_a_large_cluster_is_not_drawn(tmp_path, files):
    pytest.importorskip("matplotlib")
    path = tmp_path / "x.png"
    arguments = [*files, "--seeds", "1", "--load", "0.2", "--plot", str(path)]
    heights = []
    for count in (24, 25):
        (tmp_path / "nodes.csv").write_text(f"name,count,cpu,memory,gpu\na,{count},8,32GB,2\n")
        assert grid(*arguments) == 0
        heights.append(size_of(path.read_bytes())[1])
    assert heights[0] > heights[1] + 1000


def test_each_held_part_is_drawn_where_it_is():
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    from gridhand.core.model.nodes import Node
    from gridhand.core.model.requests import Request
    from gridhand.simulate.panels import Panel, legend_of
    from gridhand.simulate.replay import SimulatedCluster

    cluster = SimulatedCluster([Node.of("a", cpu=8, gpu=2)], "best_fit")
    for asked in (
        {"gpu": 0.5, "cpu": 2},
        {"gpu": 0.25, "cpu": 2},
        {"gpu": 1, "cpu": 2},
        {"gpu": 1},
    ):
        cluster.arrive(Request.of(**asked), 0)
    result = cluster.finish()
    legend = legend_of(result.held)
    assert [what for _, what in legend] == ["cpu=2 gpu=1", "cpu=2 gpu=0.5", "cpu=2 gpu=0.25"]
    axes = Figure().add_axes((0, 0, 1, 1))
    Panel(axes, cluster.tally.nodes, {what: color for color, what in legend}).draw(
        "best_fit", result, numbered=True
    )
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    frames = [box.get_width() for box in boxes if not box.get_fill()]
    assert len(frames) == 3  # two devices and a bar of CPUs
    filled = [box for box in boxes if box.get_fill() and box.get_zorder() == 2]
    device, bar = frames[0], frames[2]
    assert [box.get_width() for box in filled] == pytest.approx(
        [0.5 * device, 0.25 * device, device, bar / 4, bar / 4, bar / 4]
    )
    assert filled[1].get_x() == pytest.approx(filled[0].get_x() + 0.5 * device)
    assert len({box.get_facecolor() for box in filled}) == 3
    words = [text.get_text() for text in axes.texts]
    assert "GPU 87.5 % allocated, 1 of 4 tasks failed" in words
    assert {"a", "GPUs", "CPU", "1", "3"} <= set(words)
    assert "memory" not in words


def test_without_matplotlib_it_is_told_before_the_work(files, monkeypatch, capsys):
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert grid(*files, "--plot", "x.png") == 125
    out, err = capsys.readouterr()
    assert out == ""
    assert err == (
        "error: --plot needs matplotlib, which is not installed\n"
        "hint: Install it with `pip install 'gridhand[plot]'`.\n"
    )


# ---- waiting


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown_by(monkeypatch, stderr, started_ago_s):
    monkeypatch.setattr(sys, "stderr", stderr)
    with command.ReplayProgress() as progress:
        progress._start -= started_ago_s
        progress.show(50, 200)
        progress.show(100, 200)
    return stderr.getvalue()


def test_a_bar_is_shown_to_those_who_wait(monkeypatch):
    shown = shown_by(monkeypatch, Terminal(), 2)
    assert "arrivals" in shown
    assert " 50%" in shown


def test_nothing_is_shown_at_first_or_in_a_file(monkeypatch):
    assert shown_by(monkeypatch, Terminal(), 0) == ""
    assert shown_by(monkeypatch, io.StringIO(), 2) == ""


def test_an_interrupt_ends_it_cleanly(files, monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("gridhand.simulate.replay.place", interrupted)
    assert grid(*files) == 130
    out, err = capsys.readouterr()
    assert (out, err) == ("", "\n")


def test_the_help_is_that_of_the_map():
    with click.Context(make_cli(COMMANDS)) as ctx:
        found = make_cli(COMMANDS).get_command(ctx, "simulate")
    assert found.get_short_help_str(100) == COMMANDS["simulate"].help
