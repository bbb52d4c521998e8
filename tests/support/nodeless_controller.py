"""A controller without nodes of its own, behind a real socket, for the tests of the library."""

import asyncio
import threading

from gridhand.api import http_server
from gridhand.client.client import Client
from gridhand.client.transport import Address
from gridhand.controller.controller import Controller
from gridhand.controller.settings import Settings
from gridhand.core.placement.strategies import strategy_named
from gridhand.engines.base import Known, Seen
from gridhand.home import Home
from gridhand.library.remote import Remote
from gridhand.store.urls import store_at


class FixedStrategy(Settings):
    """Settings without a file, with a strategy that may be a function."""

    def __init__(self, strategy):
        super().__init__()
        self._strategy = strategy

    @property
    def strategy(self):
        return None if self._strategy is None else strategy_named(self._strategy)


class NoEngine:
    """Runs nothing, on no node."""

    async def look(self):
        return Seen(-1, [])

    async def open(self, epoch, sink):
        return Known([], [])

    async def start(self, orders):
        raise AssertionError("there are no nodes to start anything on")

    async def stop(self, key, reason, grace_ms): ...

    async def signal(self, key, signum):
        return False

    async def note_reader(self, key, offsets): ...

    async def forget(self, keys): ...

    async def read_log(self, path, offset, limit):
        return []

    async def log_size(self, path):
        return 0

    def facts(self):
        return {}

    async def close(self, *, end): ...


class Running:
    """A controller in a thread of this process. What it keeps in its folder outlasts it."""

    def __init__(self, folder, strategy=None):
        self.home = Home(str(folder))
        self.home.make()
        self._strategy = strategy
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), daemon=True)
        self._failure = None

    def __enter__(self):
        self._thread.start()
        assert self._started.wait(30)
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_):
        self.loop.call_soon_threadsafe(self.controller.begin_stopping)
        self._thread.join(30)
        assert not self._thread.is_alive()

    def client(self):
        client = Client(Address(self.home.socket))
        client.revive = lambda start: self._await(client)
        return client

    def backend(self):
        return Remote(self.client())

    def _await(self, client):
        for _ in range(500):
            if client.probe() is not None:
                return
            threading.Event().wait(0.02)
        raise AssertionError("the controller did not come back")

    async def _serve(self):
        try:
            store = store_at(self.home.store)
            self.controller = Controller(
                self.home, store, NoEngine(), settings=FixedStrategy(self._strategy)
            )
            self.loop = asyncio.get_running_loop()
            await self.controller.open()
        except BaseException as error:
            self._failure = error
            self._started.set()
            raise
        try:
            server = http_server._server(self.controller)
            with server.listening_at(self.home):
                task = asyncio.create_task(server.serve([server.file.listening]))
                self._started.set()  # it listens, so whoever connects will be answered
                await self.controller.stopping.wait()
                server.should_exit = True
                await task
        finally:
            await self.controller.close()
