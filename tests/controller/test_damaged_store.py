"""Row 27: a controller on a damaged store answers questions, changes nothing, and says what to do."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

from controller_place import Place
from damaged_pages import break_page, pages_of
from gridhand.controller.jobs.job_reader import JobFilter
from gridhand.core.errors import StoreDamaged
from gridhand.core.jobs.job import JobPhase
from gridhand.core.model.nodes import Node
from gridhand.core.operations import CheckLedger, GetStatus, ListAllocations
from gridhand.core.rows.ledger import node_row
from gridhand.store.reader import audit

ENDED = 150


async def fill(place):
    """Leave many ended jobs, one that runs and one whose end nobody has written."""
    await place.open()
    ids = await place.submit(0.01, indices=range(ENDED))
    await place.sent(*((id, 1) for id in ids))
    for id in ids:
        place.engine.end((id, 1))
    await place.ended(*ids)
    running, over = await place.submit(environment={"A": "1"}), await place.submit()
    await place.sent((running, 1), (over, 1))
    await place.close()
    place.engine.end((over, 1))
    with closing(sqlite3.connect(place.home.store)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return running, over


@pytest.mark.parametrize("damaged", ["events", "operations", "calls", "jobs", "allocations"])
def test_questions_are_answered_and_changes_refused(tmp_path, damaged):
    asyncio.run(_answers(Place(tmp_path / "home"), damaged))


async def _answers(place, damaged):
    running, over = await fill(place)
    break_page(place.home.store, pages_of(place.home.store, damaged)[0])
    place.engine.node = node_row(Node.of("n1", cpu=8))  # which cannot be written either
    controller = await place.open()
    try:
        await controller.ask(GetStatus())
        assert len(await controller.ask(ListAllocations())) == 2
        assert await controller.ask(CheckLedger()) == []
        assert await controller.counts() == {"queued": 0, "running": 2}
        listed = [view.job.id for view in await controller.jobs(JobFilter(limit=1000))]
        assert listed[:2] == [over, running]
        assert damaged == "jobs" or len(listed) == ENDED + 2
        view = await controller.job(running)
        assert view.phase is JobPhase.RUNNING
        assert await controller.devices(view.job) == []
        (problem,) = [one for one in controller.problems() if "is damaged" in one["message"]]
        assert "backup" in problem["hint"]
        for change in (place.submit(), controller.cancel("ann", [running])):
            with pytest.raises(StoreDamaged, match="damaged"):
                await change
        assert (over, 1) in place.engine.ended  # it is written once a backup is there
        assert place.engine.stops == []
        assert len(place.environments()) == 1
    finally:
        await place.close()
    found = audit(place.home.store)
    assert found.violations != []
    assert (found.nodes, found.open_jobs) == (1, 2)
