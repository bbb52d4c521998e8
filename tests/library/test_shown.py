"""What notebooks and terminals show of a grid and of what comes from it."""

import asyncio

import pytest

from gridhand import AsyncGrid, Grid, task
from gridhand.core.html import sheet, table
from gridhand.library.job_handle import Job


def test_a_table_shows_anything_as_text_and_is_left_out_when_empty():
    assert table(("a",), [["<b>"], [None]], "x & y") == (
        "<p>x &amp; y</p><table><tr><th>a</th></tr>"
        "<tr><td>&lt;b&gt;</td></tr><tr><td>None</td></tr></table>"
    )
    assert table(("a",), []) == ""


def test_a_sheet_leaves_out_what_is_not_known():
    shown = sheet("one", [("is", 0), ("not", None), ("nor", "")])
    assert shown == "<p>one</p><table><tr><td>is</td><td>0</td></tr></table>"


def test_a_grid_says_whose_and_where_it_is_and_shows_its_nodes(tmp_path):
    with Grid.in_memory(owner="ann") as grid:
        assert repr(grid) == "<grid of ann in memory>"
        grid.register_node("n1", cpu=2)
        grid.allocate(cpu=1)
        html = grid._repr_html_()
        for shown in ("<td>n1</td>", "<td>cpu=2</td>", "<td>cpu=1</td>", "<td>up</td>"):
            assert shown in html
    assert "closed" in grid._repr_html_()
    path = tmp_path / "grid.db"
    with Grid.at(str(path), owner="ann") as grid:
        assert str(path) in repr(grid)


def test_a_grid_for_asyncio_says_so():
    async def shown():
        async with AsyncGrid.in_memory(owner="ann") as grid:
            return repr(grid)

    assert asyncio.run(shown()) == "<grid of ann in memory, for asyncio>"


def test_an_allocation_and_a_job_show_what_is_known_of_them():
    with Grid.in_memory(owner="ann") as grid:
        grid.register_node("n1", cpu=2)
        html = grid.allocate(cpu=1, ttl=60)._repr_html_()
    for shown in ("active", "<td>cpu=1</td>", "<td>n1</td>", "<td>lease</td>", "until"):
        assert shown in html
    facts = {
        "id": "7", "state": "failed", "exit_code": 0, "command": ["echo", "<i>"], "node": None,
        "request": {"cpu": 1, "memory": 0}, "reason": "exit", "message": "", "why": None,
    }  # fmt: skip
    html = Job(facts, None)._repr_html_()
    for shown in (
        "job 7: failed",
        "echo &lt;i&gt;",
        "<td>cpu=1</td>",
        "<td>exit code</td><td>0</td>",
    ):
        assert shown in html
    assert "node" not in html


@task(cpu=1, retries=2)
def double(number):
    return 2 * number


def test_a_task_and_its_futures_show_what_is_known_without_waiting():
    html = double._repr_html_()
    assert "task double" in html
    assert "<td>cpu=1</td>" in html
    assert "<td>retries</td><td>2</td>" in html
    with Grid.in_memory() as grid:
        grid.register_node("n1", cpu=1)
        good, bad = double.submit(21), double.submit(None)
        assert good.result(20) == 42
        with pytest.raises(TypeError):
            bad.result(20)
        assert "double: finished" in good._repr_html_()
        assert "<td>value</td><td>42</td>" in good._repr_html_()
        assert "<td>n1</td>" in good._repr_html_()
        assert "double: failed" in bad._repr_html_()
        assert "TypeError" in bad._repr_html_()
