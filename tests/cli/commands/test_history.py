"""`grid history`, as it is printed."""

import json

FIGURES = {
    "jobs": 4, "outcomes": {"succeeded": 3, "failed": 1}, "attempts": 5,
    "wait_s": {"mean": 2.0, "p95": 60.0, "sum": 8.0},
    "run_s": {"mean": None, "p95": None, "sum": 0.0}, "cpu_allocated_s": 5400.0,
    "memory": {"measured": 2, "used_part": 0.25},
}  # fmt: skip


def found(*names, before=None):
    groups = [{"owner": name, **FIGURES} for name in names]
    return {"group_by": "owner", "groups": groups, "total": FIGURES if names else {"jobs": 0},
            "read": 4, "before": before}  # fmt: skip


def test_groups_and_all_of_them_in_a_table(fake, grid, capsys):
    fake.answers["GET", "/history"] = found("ann", None, before="17")
    assert grid("history", "--since", "7d", "--until", "1d") == 0
    told = capsys.readouterr()
    head, ann, nobody, total = told.out.splitlines()
    assert head.split()[:3] == ["OWNER", "JOBS", "FAILED"]
    assert ann.split() == ["ann", "4", "1", "0:02", "1:00", "-", "-", "1.50", "25", "%"]
    assert (nobody.split()[0], total.split()[0]) == ("-", "all")
    assert told.err == "grid: these are the newest 4 ended jobs; use --before 17 for those before\n"


def test_nothing_is_told_in_words_and_json_as_it_came(fake, grid, capsys):
    fake.answers["GET", "/history"] = found()
    assert grid("history") == 0
    assert capsys.readouterr().out == "No jobs ended in that time.\n"
    assert grid("history", "--json") == 0
    assert json.loads(capsys.readouterr().out) == found()


def test_a_time_that_makes_no_sense_is_refused(fake, grid, capsys):
    assert grid("history", "--since", "yesterday") in (2, 125)
    assert "--since" in capsys.readouterr().err
