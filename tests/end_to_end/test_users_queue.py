"""Two real users in one queue: fair shares, who may be urgent, and preemption across users."""

import json

import pytest

from machine_users import machine
from until import until

CONFIG = """scheduling:
  minimum_run: 0
  urgent: [{1}]
"""
SAVES = """
if [ -e saved ]; then echo "went on from $(cat saved)"; exit 0; fi
trap 'echo step-7 > saved; exit 143' TERM
touch ready
while :; do sleep 0.1; done
"""


@pytest.fixture(scope="module")
def served():
    with machine("ab", config=CONFIG) as made:
        made.serve("--virtual-node", "n:cpu=2,memory=1GB")
        yield made


def submitted(user, *words):
    """Submit a detached job, and return its id."""
    made = json.loads(user.run("run", "-d", "--json", *words))
    return (made[0] if isinstance(made, list) else made)["id"]


def shown(user, id):
    return json.loads(user.run("show", id, "--json"))


def test_urgent_is_for_whom_the_configuration_says_and_others_are_told_so(served):
    ann, bob = served.users
    for words in (["-d"], ["--dry-run"]):
        code, _, error = ann.grid("run", *words, "-p", "urgent", "--", "true")
        assert code != 0
        assert f"at most high; urgent is for administrators and {bob.name}" in error
    assert bob.grid("run", "-p", "urgent", "--", "true")[0] == 0
    config = served.folder / "config.yaml"
    before = config.read_text()
    config.write_text("scheduling:\n  minimum_run: 0\n")  # the default of a controller for all
    served.grid("config", "reload")
    code, _, error = bob.grid("run", "-p", "urgent", "--", "true")
    assert code != 0
    assert "urgent is for administrators" in error
    config.write_text(before)
    served.grid("config", "reload")


def test_an_urgent_job_preempts_one_of_another_user_which_saves_and_finishes(served):
    ann, bob = served.users
    low = submitted(ann, "-c", "2", "-p", "low", "--", "sh", "-c", SAVES)
    until((ann.folder / "ready").exists)
    urgent = submitted(bob, "-p", "urgent", "--", "true")
    until(lambda: shown(ann, low)["state"] == "succeeded")
    first, second = shown(ann, low)["attempts"]
    assert (first["reason"], first["preempted_by"]) == ("preempted", urgent)
    assert second["waited"]["seconds"] > 0
    assert shown(bob, urgent)["attempts"][0]["preempts"] == [low]
    assert ann.run("logs", low) == "went on from step-7\n"


def test_two_users_get_equal_shares_from_unequal_numbers_of_jobs(served):
    ann, bob = served.users
    array = submitted(ann, "--array", "1-100", "--", "sleep", "0.3")
    few = [submitted(bob, "--", "sh", "-c", "date +%s%N >> begun; sleep 0.3") for _ in range(4)]
    until(lambda: all(shown(bob, id)["state"] == "succeeded" for id in few))
    jobs = json.loads(served.grid("jobs", "--all", "--json"))
    array_id = shown(ann, array)["array"]
    served.grid("cancel", array_id)
    begun = [shown(bob, id) for id in few]
    came, last = begun[0]["submitted_at"], max(job["started_at"] for job in begun)
    tasks = shown(ann, array_id)
    between = [one for one in tasks if one["started_at"] and came <= one["started_at"] <= last]
    assert len((bob.folder / "begun").read_text().split()) == 4
    assert len(between) <= len(few) + 4, (len(between), len(jobs))
