"""Jobs that are followed from asyncio: by a thread each, which ends when it is not needed."""

import asyncio
import json
import socket
import threading

import pytest

from gridhand.client import Client
from gridhand.library.job_handle import AsyncJob
from gridhand.library.remote import Remote
from until import until

RUNNING = {"id": "17", "owner": "ann", "state": "running", "exit_code": None, "command": ["x"]}
DONE = {**RUNNING, "state": "succeeded", "exit_code": 0}
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def frame(event, data=b"", **more):
    body = json.dumps({"event": event, **more}).encode() + b"\n" + data
    return b"%x\r\n%s\r\n" % (len(body), body)


class Server:
    """Sends these parts to the one who follows, then nothing; notes when they have gone."""

    def __init__(self, *parts):
        self.gone = threading.Event()
        self._parts = parts
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        connected, _ = self._listening.accept()
        with connected:
            connected.recv(1 << 16)
            for part in self._parts:
                connected.sendall(part)
            connected.settimeout(30)
            while connected.recv(1 << 16):
                pass
        self.gone.set()

    def close(self):
        self._listening.close()


def job_at(server):
    return AsyncJob(RUNNING, Remote(Client(server.address)))


def followers():
    return [one for one in threading.enumerate() if one.name == "gridhand-follow"]


@pytest.fixture
def serve():
    made = []

    def serve(*parts):
        made.append(Server(*parts))
        return made[-1]

    assert followers() == []
    yield serve
    until(lambda: not followers(), 10)
    for server in made:
        server.close()


def run(work):
    return asyncio.run(asyncio.wait_for(work, 20))


def test_output_and_state_arrive(serve):
    output = frame("output", b"hi\n", stream="stdout", offset=0, bytes=3)
    job = job_at(serve(HEAD, frame("job", job=RUNNING), output, frame("end", job=DONE)))

    async def work():
        return [piece async for piece in job.follow()]

    assert run(work()) == [("stdout", b"hi\n")]
    assert job.succeeded


def test_the_loop_goes_on_while_a_job_is_waited_for(serve):
    server = serve(HEAD)

    async def work():
        waiting = asyncio.create_task(job_at(server).wait())
        ticks = 0
        while ticks < 20:
            await asyncio.sleep(0.001)
            ticks += 1
        assert not waiting.done()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    run(work())
    assert server.gone.wait(10)


@pytest.mark.parametrize("sent", [(), (HEAD,), (HEAD, frame("alive"))])
def test_a_task_that_is_cancelled_closes_the_connection(serve, sent):
    server = serve(*sent)

    async def work():
        with pytest.raises(TimeoutError, match="still running"):
            await job_at(server).wait(timeout=0.1)

    run(work())
    assert server.gone.wait(10)


def test_one_who_stops_reading_closes_the_connection(serve):
    server = serve(
        HEAD, *[frame("output", b"x", stream="stdout", offset=n, bytes=1) for n in (0, 1)]
    )

    async def work():
        async for _ in job_at(server).follow():
            break

    run(work())
    assert server.gone.wait(10)


def test_errors_are_raised_in_the_task(serve):
    refusal = json.dumps({"code": "unknown_job", "detail": "no job"}).encode()
    server = serve(b"HTTP/1.1 404 No\r\ncontent-length: %d\r\n\r\n" % len(refusal) + refusal)

    async def work():
        with pytest.raises(Exception, match="no job"):
            await job_at(server).wait()

    run(work())


def test_a_loop_that_is_closed_leaves_no_thread(serve):
    server = serve(HEAD, frame("alive"))
    loop = asyncio.new_event_loop()
    frames = job_at(server).follow()
    task = loop.create_task(anext(frames))
    loop.run_until_complete(asyncio.sleep(0.1))
    task.cancel()
    loop.run_until_complete(asyncio.gather(task, return_exceptions=True))
    loop.close()
    assert server.gone.wait(10)
