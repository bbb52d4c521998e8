"""A starter keeps notes for its client, tells whether something is left, and lets others join."""


def test_a_note_is_told_back_now_and_by_the_next_starter(place, starter):
    note = {"limit": 5, "paths": ["/é\udcff"], "none": None}
    order, said, held = place.held("j", note=note)
    [fact] = starter.start([order])
    assert fact["note"] == note
    said.hear()
    [listed] = starter.list()["running"]
    assert listed["note"] == note
    place.kill(starter)
    again = place.connect()
    [lost] = again.list()["ended"]
    assert lost["note"] == note
    held.open()


def test_a_note_comes_with_the_end(place, starter):
    starter.start([place.order("j", "/bin/true", note={"a": 1}), place.order("k", "/bin/true")])
    ended = starter.ended(30)
    told = {one["job"]: one for one in (next(ended), next(ended))}
    assert told["j"]["note"] == {"a": 1}
    assert "note" not in told["k"]


def test_one_without_an_epoch_joins_who_is_in_charge(place, starter, refused):
    first = place.connect(epoch=7)
    joined = place.connect(epoch=None)
    assert joined.greeting["epoch"] == 7
    assert joined.list()["running"] == []
    place.connect(epoch=8)
    assert refused(joined.list) == "stale_epoch"
    assert refused(first.list) == "stale_epoch"
    assert joined.hello(None)["epoch"] == 8
    assert joined.list()["running"] == []


def test_it_is_told_whether_something_is_left(place, starter):
    seen = []
    take = starter._take
    starter._take = lambda text: seen.append(text) or take(text)
    ended = starter.ended(30)
    starter.start([place.order("j", "/bin/true")])
    next(ended)
    assert b'"strays":false' in seen[-1]
    starter.start([place.order("k", "/bin/sh", "-c", "setsid sleep 1000 & exit 0")])
    next(ended)
    assert b'"strays":true' in seen[-1]
