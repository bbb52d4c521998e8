"""A controller that says what a test tells it to, on a real socket, as the API has it."""

from __future__ import annotations

import json
import os
import select
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest

from gridhand import __version__
from gridhand.cli.main import COMMANDS, make_cli, run

SESSION = "5e" * 16


def job(id="17", **facts):
    """A job as the API tells it; queued, unless told otherwise."""
    return {
        "id": id, "name": None, "owner": "ann", "state": "queued", "phase": "queued",
        "reason": None, "message": "", "exit_code": None, "signal": None, "node": None,
        "command": ["true"], "folder": "/", "priority": "medium", "task_type": None,
        "request": {"cpu": 1}, "array": None, "array_index": None, "after": [],
        "detached": False, "time_limit_s": None, "queue": None, "expect_s": None,
        "deadline_at": None, "fallback_after_s": None, "warn_signal": None, "warn_s": None,
        "submitted_at": "2026-01-02T03:04:05.000Z",
        "started_at": None, "ended_at": None, "why": None, "attempts": [],
        "waited": {"seconds": 0, "causes": []},
        "peak_memory_bytes": None, "gpus": [], "usage": None,
        "logs": {"stdout": f"/jobs/{id}/stdout", "stderr": f"/jobs/{id}/stderr"},
        **facts,
    }  # fmt: skip


def running(id="17", **facts):
    begun = {"node": "box", "started_at": "2026-01-02T03:04:06.000Z"}
    return job(id, state="running", phase="running", **{**begun, **facts})


def ended(id="17", code=0, **facts):
    how = {
        "state": "failed" if code else "succeeded", "phase": "ended", "reason": "exit",
        "exit_code": code, "node": "box", "started_at": "2026-01-02T03:04:06.000Z",
        "ended_at": "2026-01-02T03:04:16.000Z",
    }  # fmt: skip
    return job(id, **{**how, **facts})


def node(name="box", **facts):
    return {
        "name": name, "health": "up", "draining": False, "overcommitted": False,
        "total": {"cpu": 8, "memory": 16 * 10**9, "disk": 100 * 10**9, "gpu": 2},
        "allocated": {"cpu": 2, "memory": 4 * 10**9, "gpu": 1},
        "available": {"cpu": 6, "memory": 12 * 10**9, "disk": 100 * 10**9, "gpu": 1},
        "used": {"cpu": 2.816, "memory": 4.56e9}, "gpus": [], "labels": {}, "price": 0,
        "address": "", "allocations": ["a1-1", "a1-2", "a1-3"], "jobs": 2, **facts,
    }  # fmt: skip


class Fake:
    """Answers by `answers[method, path]`: data, an (status, problem) pair, or a call with the body.

    What `follow` tells is a list of frames, pairs of a stream and what was written to it, and
    calls without arguments, which may wait, and answer what is to be told then.
    """

    def __init__(self, path):
        self.path = path
        self.asked = []
        self.logs = {}
        self.answers = {
            ("GET", "/version"): self.version(),
            ("POST", f"/sessions/{SESSION}/jobs"): lambda body: body,
            ("DELETE", f"/sessions/{SESSION}"): lambda _: self.ended.set() or {},
        }
        self.closed = threading.Event()
        self.lost = threading.Event()  # closes the connection of the first session
        self.ended = threading.Event()  # closes all of them

    @staticmethod
    def version(**facts):
        about = {
            "version": __version__,
            "protocol": 1,
            "pid": 4242,
            "idle": True,
            "home": "/h",
            "owner": "ann",
        }
        return {**about, "started_at": "2026-01-02T03:04:05.000Z", **facts}

    def submits(self, *jobs):
        self.answers["POST", "/jobs"] = {"jobs": list(jobs)}
        for one in jobs:
            self.answers["GET", f"/jobs/{one['id']}"] = one

    def follows(self, *told, id="17"):
        self.answers["GET", f"/jobs/{id}/follow"] = lambda _: list(told)

    def body(self, method, path):
        """What was sent there, the only time it was."""
        [found] = [body for how, where, _, body in self.asked if (how, where) == (method, path)]
        return found

    def calls(self, method="POST"):
        return [path for how, path, _, _ in self.asked if how == method]

    def query(self, path):
        return [query for _, where, query, _ in self.asked if where == path]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def _answer(self):
        fake = self.server.fake
        parts = urlsplit(self.path)
        path = unquote(parts.path).removeprefix("/api/v1")
        query = parse_qsl(parts.query)
        length = int(self.headers.get("content-length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        fake.asked.append((self.command, path, query, body))
        if path == "/sessions":
            self._session(fake, body)
            return
        if path.endswith("/logs"):
            self._log(fake, path, dict(query))
            return
        missing = (404, {"detail": f"there is no job '{path}'", "code": "unknown_job", "hint": "?"})
        answer = fake.answers.get((self.command, path), missing)
        answer = answer(body) if callable(answer) else answer
        if path.endswith("/follow") and isinstance(answer, list):
            self._follow(answer)
        elif isinstance(answer, tuple):
            self._send(answer[0], json.dumps(answer[1]).encode())
        else:
            self._send(200, json.dumps(answer).encode())

    do_GET = do_POST = do_DELETE = _answer

    def _session(self, fake, body):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        opened = {"session": SESSION, "held": [], "jobs": body["jobs"]}
        self._chunk(json.dumps(opened).encode() + b"\n")
        first = len(fake.query("/sessions")) == 1
        while not (fake.ended.is_set() or (first and fake.lost.is_set())):
            if select.select([self.connection], [], [], 0.02)[0]:
                fake.closed.set()  # nothing is sent after the question
                break
        self.close_connection = True

    def _log(self, fake, path, query):
        data = fake.logs.get((path.split("/")[2], query["stream"]), b"")
        offset, limit = int(query.get("offset", 0)), int(query.get("limit", 1 << 22))
        headers = {"X-Gridhand-Offset": str(offset), "X-Gridhand-Size": str(len(data))}
        part = data[offset : offset + limit]
        self._send(200, part, {**headers, "X-Gridhand-End": str(offset + len(part))})

    def _send(self, status, content, headers=()):
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        for name, value in dict(headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def _follow(self, told):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        offsets = {"stdout": 0, "stderr": 0}
        for one in told:
            one = one() if callable(one) else one
            if not isinstance(one, dict | tuple):
                continue
            data = b""
            if isinstance(one, tuple):
                stream, data = one
                one = {
                    "event": "output",
                    "stream": stream,
                    "offset": offsets[stream],
                    "bytes": len(data),
                }
                offsets[stream] += len(data)
            self._chunk(json.dumps(one).encode() + b"\n" + data)
        self._chunk(b"")

    def _chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))


class Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request, client_address):
        pass  # those who followed are gone, as some tests want them to be


@pytest.fixture
def fake(plain, tmp_path, monkeypatch):
    path = str(tmp_path / "fake.sock")
    with Server(path, Handler) as server:
        server.fake = Fake(path)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("GRIDHAND_ADDRESS", f"unix:{path}")
        # This process is the controller, too: on a busy machine it may answer late.
        monkeypatch.setattr("gridhand.client.http1.SILENCE_S", 60.0)
        yield server.fake
        server.shutdown()
        thread.join()


@pytest.fixture
def grid():
    """Run a command line here; answers its exit code."""
    return lambda *arguments: run(make_cli(COMMANDS), arguments)


CODE = "from gridhand.cli.main import main; main()"


@pytest.fixture
def start():
    """Start `grid` as a process of its own."""
    started = []

    def start(*arguments, code=CODE, **options):
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE) | options
        process = subprocess.Popen([sys.executable, "-c", code, *arguments], **streams)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def plain(monkeypatch, tmp_path_factory):
    """No test meets the controller of whoever runs it, or its terminal's wishes."""
    for name in [name for name in os.environ if name.startswith("GRIDHAND_")]:
        monkeypatch.delenv(name)
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("GRIDHAND_HOME", str(tmp_path_factory.mktemp("home") / "own"))
