"""`grid calls`, and `show` and `why` of a call, as people and scripts meet them."""

import json
import time
from datetime import UTC, datetime

import pytest

import fake_api as samples


def ago(seconds):
    return datetime.fromtimestamp(time.time() - seconds, UTC).isoformat()


def call(number=1, state="succeeded", run="9f3a1c02b7de", **facts):
    begun = state not in ("queued", "cancelled")
    return {
        "id": f"{run}.{number}", "run": run, "number": number, "owner": "ann", "name": "f",
        "state": state, "node": "box" if begun else None, "job": "17", "allocation": "a1-3",
        "submitted_at": ago(60), "started_at": ago(50) if begun else None,
        "ended_at": None if state in ("queued", "running") else ago(45),
        "error": "ValueError: no" if state in ("failed", "lost") else None, **facts,
    }  # fmt: skip


def listed(fake, *calls):
    fake.answers["GET", "/calls"] = {"calls": list(calls)}


# ---- calls


def test_calls_that_are_alike_are_one_line(fake, grid, capsys):
    listed(
        fake,
        call(7, "running"),
        call(9, "queued"),
        *[call(number) for number in (6, 5, 4, 2)],
        call(3, "failed"),
        call(1, run="aaaa", node="other"),
    )
    assert grid("calls", "--all") == 0
    out, err = capsys.readouterr()
    assert out == (
        "ID                    NAME  OWNER  STATE      CALLS  TIME  NODE   REASON\n"
        "9f3a1c02b7de.7        f     ann    running        1  0:50  box    -\n"
        "9f3a1c02b7de.9        f     ann    queued         1  0:00  -      waits for job 17\n"
        "9f3a1c02b7de.[2,4-6]  f     ann    succeeded      4  0:05  box    -\n"
        "9f3a1c02b7de.3        f     ann    failed         1  0:05  box    ValueError: no\n"
        "aaaa.1                f     ann    succeeded      1  0:05  other  -\n"
    )
    assert err == ""


def test_ten_thousand_calls_are_a_few_lines(fake, grid, capsys):
    """Whatever the errors say, and however the numbers are scattered."""
    many = [call(number, "failed" if number % 3 == 0 else "succeeded") for number in range(1, 9_999)]  # fmt: skip
    many = [{**one, "error": one["error"] and f"KeyError: {one['number']}"} for one in many]
    listed(fake, *many, call(9_999, node="two"))
    assert grid("calls", "--all", "-n", "10000") == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert max(map(len, lines)) < 110
    assert "6667" in lines[1]
    assert "2 nodes" in lines[1]
    assert lines[2].endswith("KeyError: 3, …")


def test_each_call_for_itself(fake, grid, capsys):
    listed(fake, call(2), call(1))
    assert grid("calls", "-r", "--limit", "2") == 0
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == [
        "ID", "9f3a1c02b7de.2", "9f3a1c02b7de.1"
    ]  # fmt: skip
    assert err == "grid: showing the newest 2; use --limit to see more\n"


def test_without_a_wish_the_open_ones_and_own_recent_ones_are_listed(fake, grid, capsys):
    def answer(_):
        if ("state", "open") in fake.query("/calls")[-1]:
            return {"calls": [call(5, "running", owner="bob")]}
        return {"calls": [call(2), call(1, ended_at=ago(7200))]}

    fake.answers["GET", "/calls"] = answer
    assert grid("calls", "--json") == 0
    assert [one["number"] for one in json.loads(capsys.readouterr().out)] == [5, 2]
    assert dict(fake.query("/calls")[1])["owner"]


def test_wishes_are_passed_on(fake, grid, capsys):
    listed(fake)
    wishes = ("--state", "open,failed", "--name", "f g", "--run", "9f3a", "--owner", "bob", "-n", "5")  # fmt: skip
    assert grid("calls", *wishes) == 0
    assert fake.query("/calls") == [
        [("state", "open"), ("state", "failed"), ("name", "f g"), ("run", "9f3a"),
         ("owner", "bob"), ("limit", "5")]
    ]  # fmt: skip
    assert capsys.readouterr().out.split() == [
        "ID", "NAME", "OWNER", "STATE", "CALLS", "TIME", "NODE", "REASON"
    ]  # fmt: skip


def test_a_state_that_is_none_is_refused_here(fake, grid, capsys):
    assert grid("calls", "--state", "asleep") == 125
    assert "'asleep' is not one of" in capsys.readouterr().err


def test_what_a_terminal_would_obey_is_made_harmless(fake, grid, capsys):
    listed(fake, call(1, "failed", error="\033[2J", name="\033f"))
    assert grid("calls") == 0
    assert "\033" not in capsys.readouterr().out


# ---- one call


def shown(fake, one):
    fake.answers["GET", f"/calls/{one['id']}"] = one
    return one["id"]


def test_all_that_is_known_of_a_call_is_shown(fake, grid, capsys):
    id = shown(fake, call(17, "failed"))
    assert grid("show", id) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "Call:       9f3a1c02b7de.17\nName:       f\nOwner:      ann\n"
        "State:      failed: ValueError: no\nNode:       box\nSlot:       job 17\n"
        "Allocation: a1-3\n"
    )
    assert "Ran for:    5 s" in out
    assert grid("show", id, "--json") == 0
    assert json.loads(capsys.readouterr().out)["number"] == 17
    assert fake.calls("GET").count("/jobs") == 0


def test_a_call_that_is_not_there(fake, grid, capsys):
    problem = {"detail": "there is no call 'a.1'", "code": "unknown_call", "hint": "List them."}
    fake.answers["GET", "/calls/a.1"] = (404, problem)
    for command in ("show", "why"):
        assert grid(command, "a.1") == 125
        assert capsys.readouterr().err == "error: there is no call 'a.1'\nhint: List them.\n"


QUEUED = {"why": "no room for cpu=8", "explanation": "cpu=8 does not fit now", "holders": []}
NO_JOB = (404, {"detail": "there is no job '17'", "code": "unknown_job", "hint": "?"})
SLOTS = {
    "queued": (samples.job("17", **QUEUED), "waits for its slot, job 17, to start\njob 17: "),
    "running": (samples.running("17"), "waits for its turn in slot 17 (running)"),
    "gone": (NO_JOB, "waits for a free slot: all slots of its kind are busy"),
}


@pytest.mark.parametrize(("slot", "said"), SLOTS.values(), ids=SLOTS)
def test_a_call_that_waits_says_for_what(fake, grid, capsys, slot, said):
    id = shown(fake, call(17, "queued"))
    fake.answers["GET", "/jobs/17/why"] = (
        {**QUEUED, **slot} if isinstance(slot, dict) and slot["state"] == "queued" else slot
    )
    assert grid("why", id) == 0
    assert capsys.readouterr().out.startswith(f"call {id} {said}")
    assert grid("why", id, "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert told["state"] == "queued"
    assert (told["slot"] is None) == isinstance(slot, tuple)


STANDING = {
    "running": (call(1, "running"), "is running on box in job 17, for 0:50"),
    "running without a slot": (call(1, "running", job=None), "is running on box, for 0:50"),
    "waiting behind others": (call(1, "queued", job=None), "waits for a free slot: all slots of its kind are busy"),
    "over": (call(1), "is succeeded"),
    "failed": (call(1, "failed"), "is failed: ValueError: no"),
}  # fmt: skip


@pytest.mark.parametrize(("one", "said"), STANDING.values(), ids=STANDING)
def test_any_other_call_says_how_it_stands(fake, grid, capsys, one, said):
    begun = {"started_at": ago(50)} if one["state"] == "running" else {}
    assert grid("why", shown(fake, {**one, **begun})) == 0
    assert capsys.readouterr().out == f"call {one['id']} {said}\n"
