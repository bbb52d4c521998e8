"""A controller with a fake engine behind a real socket, and those who ask it."""

import asyncio
import json
import threading
from contextlib import closing, suppress
from pathlib import Path

from failing_store import FailingStore
from fake_engine import FakeEngine
from gridhand.api import http_server
from gridhand.api.network_listener import open_listener
from gridhand.client.transport import Address
from gridhand.controller.controller import Controller
from gridhand.controller.settings import Settings
from gridhand.engines.local import LocalEngine
from gridhand.home import Home
from until import until

PATIENCE_S = 20
JOB = {"command": ["true"], "folder": "/", "detached": True}


class Engine(FakeEngine):
    """Runs nothing, but reads the logs that tests write."""

    _logs = LocalEngine("", "")

    async def read_log(self, path, offset, limit):
        return await self._logs.read_log(path, offset, limit)

    async def log_size(self, path):
        return await self._logs.log_size(path)


class Server:
    """A controller with a fake engine behind a real socket, in a thread of its own."""

    def __init__(self, folder, cpu=4, listen=None, config=None):
        """`listen` are options of the network, such as `ListenOptions(port=0)`."""
        self.home = Home(str(folder))
        self.home.make()
        self.engine = Engine(cpu=cpu)
        self._listen, self._config = listen, config
        self.login_link = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(PATIENCE_S)
        return self

    def __exit__(self, *_):
        with suppress(RuntimeError):  # it has ended by itself
            self.loop.call_soon_threadsafe(self.controller.begin_stopping)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    async def _serve(self):
        self.loop = asyncio.get_running_loop()
        self.store = FailingStore(self.home.store)
        settings = Settings(self._config)
        self.controller = Controller(self.home, self.store, self.engine, settings=settings)
        await self.controller.open()
        try:
            server = http_server._server(self.controller)
            if self._listen is not None:
                server.network = open_listener(self._listen.over(settings.http))
                server.announce = self._announced
            with server.listening_at(self.home):
                task = asyncio.create_task(server.serve([server.file.listening]))
                if self._listen is None:
                    self._ready.set()
                await self.controller.stopping.wait()
                server.should_exit = True
                await task
        finally:
            await self.controller.close()

    def _announced(self, url, link):
        self.url, self.login_link = url, link
        self._ready.set()

    def do(self, what, *args, **more):
        """Have it done in the loop of the controller."""

        async def done():
            return what(*args, **more)

        return asyncio.run_coroutine_threadsafe(done(), self.loop).result(PATIENCE_S)

    def end(self, id, attempt=1, **how):
        until(lambda: (id, attempt) in self.engine.running)
        self.do(self.engine.end, (id, attempt), **how)

    def log(self, id, stream="stdout"):
        path = Path(self.home.job(id)) / stream
        path.parent.mkdir(parents=True, exist_ok=True)
        return path


class Api:
    def __init__(self, server, address=None, token=None):
        """Ask over the socket, or at another address with a token."""
        self._address = Address(server.home.socket) if address is None else Address.parse(address)
        self._own = {} if token is None else {"authorization": f"Bearer {token}"}

    def raw(self, method, target, body=None, headers=None, prefix="/api/v1"):
        connection = self._address.open(PATIENCE_S)
        with closing(connection):
            named = {"content-type": "application/json", **self._own, **(headers or {})}
            connection._host = named.pop("host", connection._host)
            reply = connection.ask(method, f"{prefix}{target}", named, body, PATIENCE_S)
            return reply.status, reply.headers, reply.body.read()

    def __call__(self, method, target, body=None, **headers):
        content = None if body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): text for name, text in headers.items()}
        status, told, text = self.raw(method, target, content, named)
        if status >= 400:
            assert told["content-type"] == "application/problem+json"
        return status, json.loads(text)

    def ok(self, method, target, body=None, **headers):
        status, told = self(method, target, body, **headers)
        assert status < 300, told
        return told

    def submit(self, **more):
        return self.ok("POST", "/jobs", {**JOB, **more})["jobs"][0]["id"]

    def job(self, id):
        return self.ok("GET", f"/jobs/{id}")

    def follow(self, id, **asked):
        connection = self._address.open(PATIENCE_S)
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        target = f"/api/v1/jobs/{id}/follow?{query}"
        reply = connection.ask("GET", target, self._own, None, PATIENCE_S)
        assert reply.status == 200
        return connection, Frames(reply.body)


class Frames:
    def __init__(self, body):
        self._body = body

    def __iter__(self):
        return self

    def __next__(self):
        line = self._body.readline()
        if not line:
            raise StopIteration
        head = json.loads(line)
        if "bytes" in head:
            head["text"] = self._body.read(head["bytes"])
        return head

    def until(self, event):
        for frame in self:
            if frame["event"] == event:
                return frame
        raise AssertionError(f"no {event} came")
