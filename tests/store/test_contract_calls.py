"""What every store promises of calls, whichever database is behind it."""

import pytest

from gridhand.core.errors import NotYours, StoreError, StoreFenced
from gridhand.core.model.call_record import OVER, CallRecord
from store_writer import lawful

ODD = "ü🚀 '; DROP TABLE calls; -- %s ? :x $1 \\"


def call(number=1, state="succeeded", run="r1", **more):
    """A call that was submitted at 10 times its number, begun 1 later, and over 2 later."""
    at = 10 * number
    started = at + 1 if state not in ("queued", "cancelled") else None
    facts = {
        "run": run, "number": number, "owner": "ann", "name": "f", "state": state, "node": "n",
        "job": "7_3", "allocation": "a1-4", "submitted": at, "started": started,
        "ended": at + 2 if state in OVER else None,
        "error": "ValueError: no" if state in ("failed", "lost") else None,
    }  # fmt: skip
    return CallRecord(**facts | more)


def ids(calls):
    return [one.id for one in calls]


# ---- writing


def test_calls_come_back_as_they_were_written(store):
    calls = [call(n, state) for n, state in enumerate(("queued", "running", *OVER), 1)]
    calls.append(call(7, "failed", name=ODD, error=ODD, node=None, job=None, allocation=None))
    store.write_calls(calls)
    assert sorted(store.calls()) == sorted(calls)
    assert [store.find_call("r1", one.number) for one in calls] == calls
    assert store.find_call("r1", 8) is None
    assert store.find_call("r2", 1) is None


def test_many_are_written_at_once_and_none_twice(store):
    calls = [call(n) for n in range(1, 2_500)]
    store.write_calls(calls)
    store.write_calls(calls[1_000:])
    assert len(store.calls(limit=10_000)) == len(calls)
    store.write_calls([])
    assert len(store.calls(limit=10_000)) == len(calls)


def test_what_is_open_is_written_again_until_it_ends(store):
    for state in ("queued", "running", "running", "succeeded"):
        last = call(1, state, job=state[:1].replace("q", "3").replace("r", "4"), submitted=5)
        store.write_calls([last, call(2, "queued")])
        assert store.find_call("r1", 1) == last
    assert store.find_call("r1", 2).state == "queued"


@pytest.mark.parametrize("over", OVER)
@pytest.mark.parametrize("late", ["queued", "running", *OVER])
def test_what_has_ended_is_never_opened_again_nor_changed(store, over, late):
    store.write_calls([call(1, over)])
    store.write_calls([call(1, late, name="other", submitted=1), call(2, late)])
    assert store.find_call("r1", 1) == call(1, over)
    assert store.find_call("r1", 2) == call(2, late)


def test_of_one_call_told_twice_at_once_the_last_counts(store):
    store.write_calls([call(1, "queued"), call(1, "running"), call(1)])
    assert store.calls() == [call(1)]


def test_the_run_of_another_owner_is_refused_as_a_whole(store):
    store.write_calls([call(1, "running")])
    with pytest.raises(NotYours, match="r1"):
        store.write_calls([call(9, run="r2", owner="bob"), call(1, owner="bob")])
    with pytest.raises(NotYours):
        store.write_calls([call(2, owner="bob")])
    assert store.calls() == [call(1, "running")]
    store.write_calls([call(2), call(1, run="r2", owner="bob")])
    assert len(store.calls()) == 3


BROKEN = {
    "a state that is none": {"state": "asleep"},
    "over without an end": {"ended": None},
    "open with an end": {"state": "running"},
    "running before it began": {"state": "running", "ended": None, "started": None},
    "a success that never began": {"started": None},
    "a failure without an error": {"state": "failed"},
    "a success with an error": {"error": "no"},
    "begun before it was submitted": {"started": 9},
    "over before it began": {"ended": 10},
    "over before it was submitted": {"state": "cancelled", "started": None, "ended": 9},
    "number 0": {"number": 0},
    "a time before all time": {"submitted": -1},
}


@pytest.mark.parametrize("changes", BROKEN.values(), ids=BROKEN)
def test_the_database_itself_refuses_what_makes_no_sense(store, changes):
    store.write_calls([call(3)])
    with pytest.raises(StoreError, match="refused"):
        store.write_calls([call(2), call(1)._replace(**changes)])
    assert store.calls() == [call(3)]


def test_nothing_of_the_ledger_is_touched(store, tools):
    writer = tools.Writer(store)
    writer.register("n", cpu=8)
    writer.submit()
    writer.commit()
    before = store.load(), store.events()
    store.write_calls([call(1), call(2, "running")])
    store.lose_calls("ann", "r1", at=100, why="gone", most=10)
    store.forget_calls(before=10**6, keep=0, most=10)
    assert (store.load(), store.events()) == before
    writer.submit()
    writer.commit()
    lawful(store)


def test_they_outlive_their_store_and_an_older_owner_writes_none(durable):
    first = durable.store()
    first.open()
    first.write_calls([call(1), call(2, "running")])
    first.close()
    second = durable.store()
    second.open()
    assert ids(second.calls()) == ["r1.2", "r1.1"]
    second._epoch -= 1  # as if a third had taken over
    for write in (
        lambda: second.write_calls([call(3)]),
        lambda: second.lose_calls("ann", "r1", at=100, why="gone", most=10),
        lambda: second.forget_calls(before=10**6, keep=0, most=10),
    ):
        with pytest.raises(StoreFenced):
            write()
    assert ids(second.calls()) == ["r1.2", "r1.1"]


# ---- reading


@pytest.fixture
def filled(store):
    """Those of two runs, owners and names, in all states; numbers tell when."""
    states = ("queued", "running", *OVER)
    mine = [call(n, states[n % 6], name=f"f{n % 2}") for n in range(1, 25)]
    theirs = [call(n, states[n % 6], run="r2", owner="bob") for n in range(30, 42)]
    store.write_calls(mine)
    store.write_calls(theirs)
    return [*mine, *theirs]


def expected(calls, wanted):
    """The open ones, the newest first, then those that ended, the latest first."""
    found = sorted((one for one in calls if wanted(one)), key=lambda one: -one.number)
    still = [one for one in found if one.ended is None]
    return ids([*still, *sorted(set(found) - set(still), key=lambda one: -one.ended)])


#    what is asked                    the question                                 who should be among the answers
QUESTIONS = {
    "everything":                    ({},                                          lambda one: True),
    "one state":                     ({"states": ["failed"]},                      lambda one: one.state == "failed"),
    "open ones":                     ({"states": ["queued", "running"]},           lambda one: one.ended is None),
    "an open and an ended state":    ({"states": ["running", "lost"]},             lambda one: one.state in ("running", "lost")),
    "a name":                        ({"name": "f1"},                              lambda one: one.name == "f1"),
    "a name and a state":            ({"name": "f", "states": ["cancelled"]},      lambda one: (one.name, one.state) == ("f", "cancelled")),
    "a name that is not there":      ({"name": "g"},                               lambda one: False),
    "an owner":                      ({"owner": "bob"},                            lambda one: one.owner == "bob"),
    "an owner and a state":          ({"owner": "ann", "states": ["succeeded"]},   lambda one: (one.owner, one.state) == ("ann", "succeeded")),
    "an owner and a name":           ({"owner": "bob", "name": "f1"},              lambda one: False),
    "a run":                         ({"run": "r2"},                               lambda one: one.run == "r2"),
    "a run and a state":             ({"run": "r1", "states": ["lost"]},           lambda one: (one.run, one.state) == ("r1", "lost")),
    "a run and another's name":      ({"run": "r1", "owner": "bob"},               lambda one: False),
}  # fmt: skip


@pytest.mark.parametrize(("asked", "wanted"), QUESTIONS.values(), ids=QUESTIONS)
def test_questions_are_answered_in_order_and_in_part(store, filled, asked, wanted):
    answer = expected(filled, wanted)
    assert ids(store.calls(**asked)) == answer
    if "run" not in asked:  # there the newest are taken, whether they are open or not
        assert ids(store.calls(**asked, limit=3)) == answer[:3]


def test_the_runs_that_have_something_open(store, filled):
    assert sorted(store.open_runs()) == [("ann", "r1"), ("bob", "r2")]
    store.write_calls([call(1, run="r3")])
    assert sorted(store.open_runs()) == [("ann", "r1"), ("bob", "r2")]


# ---- losing


def test_what_is_open_of_a_run_is_lost_and_nothing_else(store, filled):
    still = [one for one in filled if (one.run, one.ended) == ("r1", None)]
    assert store.lose_calls("bob", "r1", at=999, why="gone", most=100) == 0
    assert store.lose_calls("ann", "r1", at=999, why="gone", most=3) == 3
    assert store.lose_calls("ann", "r1", at=999, why="gone", most=100) == len(still) - 3
    assert store.lose_calls("ann", "r1", at=999, why="gone", most=100) == 0
    lost = {one: one._replace(state="lost", ended=999, error="gone") for one in still}
    assert set(store.calls()) == {lost.get(one, one) for one in filled}
    assert store.open_runs() == [("bob", "r2")]


# ---- forgetting


def test_those_that_ended_before_a_time_are_forgotten_and_open_ones_never(store, filled):
    middle = sorted(one.ended for one in filled if one.ended is not None)[12]
    while store.forget_calls(before=middle, keep=1_000, most=5):
        pass
    kept = {one for one in filled if one.ended is None or one.ended >= middle}
    assert set(store.calls()) == kept


def test_of_too_many_the_oldest_go_a_few_at_a_time(store, filled):
    ended = sorted((one for one in filled if one.ended is not None), key=lambda one: one.ended)
    assert store.forget_calls(before=0, keep=len(ended) - 7, most=5) is True
    assert len(store.calls()) == len(filled) - 5
    assert store.forget_calls(before=0, keep=len(ended) - 7, most=5) is False
    assert set(store.calls()) == set(filled) - set(ended[:7])
    store.write_calls([call(n) for n in range(50, 60)])  # which are counted as they come
    while store.forget_calls(before=0, keep=len(ended) - 7, most=5):
        pass
    assert len(store.calls(states=OVER)) == len(ended) - 7
    assert len(store.calls(states=["queued", "running"])) == len(filled) - len(ended)


def test_where_there_is_nothing_nothing_is_forgotten(store):
    assert store.forget_calls(before=10**9, keep=0, most=5) is False
