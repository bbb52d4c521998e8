"""The text of a page of events is made once for all who see the same of it, and never for others."""

import asyncio

from gridhand.api.routes import event_stream
from gridhand.api.routes.event_stream import EventFilter, _page_text
from gridhand.controller.event_feed import EventFeed, FeedEvent
from gridhand.core.rows.ledger import Event


def event(number, owner):
    row = {"owner": owner, "secret": f"of {owner}"}
    return FeedEvent(Event(number, 0, "job.ended", str(number), owner, None, "", row))


async def feed():
    return EventFeed(None, None, asyncio.Event())


def test_a_text_is_made_once_until_there_are_new_events():
    made = []

    def make():
        made.append(1)
        return b"text"

    async def read():
        shared = await feed()
        assert [shared.shared("key", make) for _ in range(100)] == [b"text"] * 100
        assert shared.shared("other", make) == b"text"
        assert len(made) == 2
        shared._tell()
        shared.shared("key", make)
        assert len(made) == 3

    asyncio.run(read())


def test_so_many_different_readers_take_no_more_memory_than_that(monkeypatch):
    monkeypatch.setattr("gridhand.controller.event_feed._MOST_SHARED", 3)

    async def read():
        shared = await feed()
        for key in range(10):
            assert shared.shared(key, lambda key=key: b"%d" % key) == b"%d" % key
        assert len(shared._texts) == 3

    asyncio.run(read())


def test_each_viewer_sees_the_rows_of_its_own():
    found, everything = [event(1, "ann"), event(2, "bob")], EventFilter()
    seen = {viewer: _page_text(found, everything, viewer) for viewer in (None, "ann", "carl")}
    assert [b"of ann" in text for text in seen.values()] == [True, True, False]
    assert [b"of bob" in text for text in seen.values()] == [True, False, False]
    own = EventFilter(only="ann")
    assert b"id: 2" not in event_stream._page_text(found, own, "ann")
