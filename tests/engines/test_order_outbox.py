"""The orders that wait for a worker: the latest of each kind, and not without end."""

from gridhand.engines import order_outbox
from gridhand.engines.order_outbox import OrderOutbox


def numbers(outbox):
    return [order["number"] for order in outbox.take((), starts=True)]


def test_only_the_latest_order_of_a_kind_waits():
    outbox = OrderOutbox()
    first = outbox.put(("reader", "7", 1), {"do": "reader"})
    second = outbox.put(("reader", "7", 1), {"do": "reader"})
    outbox.done([first])  # which was replaced
    assert numbers(outbox) == [second]
    outbox.done([second])
    third = outbox.put(("reader", "7", 1), {"do": "reader"})
    assert numbers(outbox) == [third]


def test_a_start_is_withdrawn_once_and_it_is_known_whether_somebody_got_it():
    outbox = OrderOutbox()
    outbox.put(("start", "7", 1), {"do": "start"})
    assert outbox.withdraw_start(("7", 1))
    assert not outbox.withdraw_start(("7", 1))
    outbox.put(("start", "7", 1), {"do": "start"})
    assert len(outbox.take((), starts=True)) == 1
    assert not outbox.withdraw_start(("7", 1))
    assert len(outbox) == 0


def test_what_a_worker_is_to_forget_does_not_pile_up_without_end(monkeypatch):
    monkeypatch.setattr(order_outbox, "MOST_WAITING", 10)
    outbox = OrderOutbox()
    kept = [outbox.put((what, "7", 1), {"do": what}) for what in ("start", "stop")]
    for job in range(100):
        outbox.put(("forget", str(job), 1), {"do": "forget"})
        assert len(outbox) <= 10
    assert numbers(outbox)[:2] == kept
    last = outbox.put(("forget", "last", 1), {"do": "forget"})
    assert last in numbers(outbox)
