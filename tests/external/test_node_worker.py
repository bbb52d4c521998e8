"""Reports of a worker that do not arrive are sent again, with all that was in them."""

import asyncio

import pytest

from gridhand.engines.base import AttemptReport, EndReport
from gridhand.external.node_worker import NodeWorker
from gridhand.external.worker_folder import WorkerFolder


class Link:
    address = "http://nowhere"

    def __init__(self):
        self.fails, self.sent = True, []

    async def post(self, what, body, timeout_s=0.0):
        if self.fails:
            raise OSError("the network is away")
        self.sent.append(body)
        return {}

    async def send_bytes(self, what, query, data):
        return {"end": 0, "pause": False}


def test_what_did_not_arrive_is_in_the_next_report(tmp_path):
    async def report():
        folder, link = WorkerFolder(str(tmp_path / "w")), Link()
        worker = NodeWorker(folder, folder.begin(), link, "lab", lambda text: None)
        worker._session = "s"
        worker.node_changed({"health": "up", "capacity": {}}, ())
        worker.ended([AttemptReport("7", 1, "a1-7", end=EndReport("exit", code=0))])
        worker._desk.put_back({"17": True})
        with pytest.raises(OSError):
            await worker._report("s")
        link.fails = False
        await worker._report("s")
        await worker._report("s")
        return link.sent

    [sent] = asyncio.run(report())
    assert sent["sent"] == {"17": True}
    assert sent["node"]["row"]["name"] == "lab"
    assert [one["job"] for one in sent["attempts"]] == ["7"]


def test_an_attempt_that_cannot_be_prepared_is_reported_at_once(tmp_path):
    async def fail():
        folder = WorkerFolder(str(tmp_path / "w"))
        worker = NodeWorker(folder, folder.begin(), Link(), "lab", lambda text: None)
        worker._book.fail(("7", 1), "a1-7", "its folder cannot be made")
        return worker._look.is_set()

    assert asyncio.run(fail())
