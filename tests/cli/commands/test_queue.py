"""`grid queue`, the shares in `grid status`, and the receipt in `grid show`, as they are printed."""

from fake_api import job
from gridhand.cli.commands.queue import queue_lines
from gridhand.cli.commands.show import waited_text
from gridhand.cli.commands.status import share_table

ENTRY = {
    "position": 1, "kind": "job", "id": "17", "array": None, "tasks": 1, "first_task": None,
    "last_task": None, "complete": True, "name": "train", "owner": "ann", "share": 0.25,
    "past_share": 0.1, "priority": "high", "request": {"cpu": 2, "gpu": 1},
    "waiting_since": "2026-01-02T03:04:05.000Z", "cause": "room:gpu", "why": "no GPU free",
    "expected_start_at": None, "expected_node": None,
}  # fmt: skip


def test_the_queue_in_a_table(fake, grid, capsys):
    tasks = {
        **ENTRY, "position": 2, "id": "18_3", "array": "18", "tasks": 4, "first_task": 3,
        "last_task": 6, "expected_start_at": "2026-01-02T03:04:05.000Z", "expected_node": "n1",
    }  # fmt: skip
    waits = {**ENTRY, "position": 6, "kind": "allocation", "id": None, "name": "upkeep"}
    fake.answers["GET", "/queue"] = {"entries": [ENTRY, tasks, waits], "ready": 6, "later": 2}
    assert grid("queue") == 0
    head, first, second, third, last = capsys.readouterr().out.splitlines()
    assert head.split() == (
        [
            "#",
            "ID",
            "NAME",
            "OWNER",
            "PRIORITY",
            "SHARE",
            "PAST",
            "REQUEST",
            "WAITED",
            "START",
            "WHY",
        ]
    )
    assert first.split()[:9] == ["1", "17", "train", "ann", "high", "25", "%", "10", "%"]
    assert first.endswith("no GPU free")
    assert "18_[3-6]" in second
    assert "in 0:00 on n1" in second
    assert "(reserve)" in third
    assert last == "2 jobs wait for other jobs, for a time or for `grid unhold`."


def test_an_empty_queue_is_told_in_words():
    assert queue_lines({"entries": [], "ready": 0, "later": 0}) == ["Nothing waits for room."]


def test_the_receipt_of_a_wait_in_words():
    causes = [("no GPU free", 720.0), ("behind others", 180.0), ("held", 60.0), ("quota", 0.2)]
    waited = {
        "seconds": sum(seconds for _, seconds in causes),
        "causes": [{"text": text, "seconds": seconds} for text, seconds in causes],
    }
    assert waited_text(waited) == "16m: no GPU free 12m; behind others 3m; held 1m"
    assert waited_text({"seconds": 0.3, "causes": []}) == ""


def test_show_prints_the_receipt(fake, grid, capsys):
    waited = {"seconds": 60.0, "causes": [{"cause": "held", "text": "held", "seconds": 60.0}]}
    fake.answers["GET", "/jobs/17"] = job(waited=waited)
    assert grid("show", "17") == 0
    assert "Waited:" in (out := capsys.readouterr().out)
    assert "1m: held 1m" in out


def test_shares_in_the_status():
    shares = [{"owner": f"user{n}", "share": 0.5, "past_share": 0.25} for n in range(22)]
    lines = share_table(shares)
    assert lines[0].split() == ["OWNER", "SHARE", "PAST"]
    assert lines[1].split() == ["user0", "50", "%", "25", "%"]
    assert lines[-1] == "and 2 more"
