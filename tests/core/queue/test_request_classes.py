"""The heap of waiting jobs: any entry can be removed, and the others stay in order."""

import random
from types import SimpleNamespace

import pytest

from gridhand.core.queue.request_classes import JobHeap, QueueEntry
from gridhand.core.queue.wait_causes import JobClock


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("removed", [0, 10, 33, 101, 120, 150, 199])
def test_entries_come_in_order_whatever_was_removed(seed, removed):
    chance = random.Random(seed)
    numbers = chance.sample(range(10_000), 200)
    entries = [QueueEntry(SimpleNamespace(number=number), JobClock(0, 0)) for number in numbers]
    heap = JobHeap()
    for entry in entries:
        heap.push(entry)
    gone = chance.sample(entries, removed)
    for entry in gone:
        heap.remove(entry)
    assert len(heap) == 200 - removed
    found = []
    while (entry := heap.pop()) is not None:
        found.append(entry.order)
    assert found == sorted(entry.order for entry in entries if entry not in gone)
    assert len(heap) == 0


def test_a_heap_is_not_much_longer_than_its_entries():
    heap = JobHeap()
    entries = [QueueEntry(SimpleNamespace(number=number), JobClock(0, 0)) for number in range(1000)]
    for entry in entries:
        heap.push(entry)
    for entry in entries[1:]:
        heap.remove(entry)
    assert len(heap._entries) < 100
    assert heap.first() is entries[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_heap_is_read_in_order_without_a_change(seed):
    chance = random.Random(seed)
    heap, numbers = JobHeap(), chance.sample(range(10_000), 200)
    entries = [QueueEntry(SimpleNamespace(number=number), JobClock(0, 0)) for number in numbers]
    for entry in entries:
        heap.push(entry)
    for entry in entries[:20]:
        heap.remove(entry)
    for _ in range(2):
        assert [entry.order for entry in heap.in_order()] == sorted(numbers[20:])
