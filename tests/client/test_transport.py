"""What the client makes of replies, of those that never come, and of those that say no."""

import io
import os
import shutil
import socket
import tempfile
import threading
from types import SimpleNamespace

import pytest

from fake_controller import DROP, FakeController, chunked, problem, reply
from gridhand.client import Client, routes
from gridhand.client.http1 import ConnectionLost, Reply
from gridhand.client.retry import may_repeat
from gridhand.client.transport import Address, ReplyStream
from gridhand.core import errors
from other_user import OTHER, OtherProcess, needs_root


@pytest.fixture
def serve(home):
    """Answer requests in this way; yields the client and the fake controller."""
    made = []

    def serve(answer):
        fake = FakeController(f"{home}/socket", answer)
        client = Client(f"unix:{home}/socket", timeout_s=5)
        made.extend([client, fake])
        return client, fake

    yield serve
    for one in made:
        one.close()


#    what it shows                          the reply                                          the answer
REPLIES = {
    "a reply with a length":               lambda: reply({"a": 1}),
    "a reply in chunks":                   lambda: chunked([b'{"', b"a", b'": 1}']),
    "chunks may be named":                 lambda: b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n8;x=y\r\n{\"a\": 1}\r\n0\r\nTrailer: x\r\n\r\n",
    "a reply until the end":               lambda: [b"HTTP/1.1 200 OK\r\n\r\n", b'{"a": 1}', DROP],
    "one in small pieces":                 lambda: [bytes([one]) for one in reply({"a": 1})],
    "a status without a word":             lambda: b"HTTP/1.1 200\r\nContent-Length: 8\r\n\r\n{\"a\": 1}",
    "something to read before":            lambda: b"HTTP/1.1 100 Continue\r\n\r\n" + reply({"a": 1}),
    "an old server":                       lambda: [b"HTTP/1.0 200 OK\r\nContent-Length: 8\r\n\r\n{\"a\": 1}", DROP],
}  # fmt: skip


@pytest.mark.parametrize("answer", REPLIES.values(), ids=REPLIES)
def test_replies_are_read(serve, answer):
    client, fake = serve(lambda asked: answer())
    assert client.status() == client.status() == {"a": 1}
    assert [asked.path for asked in fake.asked] == ["/api/v1/status"] * 2


def test_a_reply_without_a_body_is_nothing(serve):
    client, _ = serve(lambda asked: b"HTTP/1.1 204 No Content\r\n\r\n")
    assert client.stop() == client.stop() == {}


#    what it shows                          the reply
BROKEN = {
    "no reply":                            lambda: DROP,
    "half a head":                         lambda: [b"HTTP/1.1 200 OK\r\nConte", DROP],
    "half a body":                         lambda: [reply({"a": 1})[:-1], DROP],
    "half of the chunks":                  lambda: chunked([b'{"a', DROP]),
    "a chunk without a size":              lambda: b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "no HTTP":                             lambda: b"hello\r\n",
    "no length":                           lambda: b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
    "headers without an end":              lambda: b"HTTP/1.1 200 OK\r\n" + b"".join(b"a%d: b\r\n" % n for n in range(300)) + b"\r\n",
}  # fmt: skip


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
def test_broken_replies_are_a_lost_connection(serve, answer):
    client, _ = serve(lambda asked: answer())
    with pytest.raises(errors.ControllerUnavailable, match="was lost"):
        client.status()


def test_a_stream_that_ends_within_a_line_or_a_frame_is_a_lost_connection():
    def stream(data):
        closing = SimpleNamespace(close=lambda: None)
        return ReplyStream(closing, Reply(200, {}, io.BytesIO(data)))

    whole = stream(b"one\ntwo")
    assert whole.line() == b"one\n"
    with pytest.raises(ConnectionLost, match="line"):
        whole.line()
    assert stream(b"").line() == b""
    assert stream(b"abc").exactly(3) == b"abc"
    with pytest.raises(ConnectionLost, match="frame"):
        stream(b"abc").exactly(4)


def test_a_connection_is_kept(serve):
    client, fake = serve(lambda asked: reply({}))
    for _ in range(5):
        client.status()
    assert fake.connections == 1


def test_one_that_was_closed_meanwhile_is_opened_again(serve):
    client, fake = serve(lambda asked: reply({"jobs": []}))
    client.status()
    fake.hang_up()
    client.status()
    fake.hang_up()
    client.submit({"command": ["true"]})
    assert fake.connections == 3


def test_what_may_not_be_repeated_is_not(serve):
    client, fake = serve(lambda asked: DROP if asked.path.endswith("sessions") else reply({}))
    client.status()
    with pytest.raises(errors.ControllerUnavailable):
        client.open_stream(routes.session({}))
    assert [asked.path for asked in fake.asked].count("/api/v1/sessions") == 1


def test_a_request_that_may_not_be_repeated_is_sent_once_on_a_connection_that_was_kept(serve):
    """The server has closed it meanwhile, perhaps after it has read the request."""
    client, fake = serve(lambda asked: DROP if asked.method == "POST" else reply({}))
    client.status()
    with pytest.raises(errors.ControllerUnavailable):
        client.ask(routes.HttpCall("POST", "/api/v1/once", b"{}"))
    assert [asked.method for asked in fake.asked].count("POST") == 1
    client.status()
    fake.hang_up()
    with pytest.raises(errors.ControllerUnavailable):
        client.ask(routes.HttpCall("POST", "/api/v1/once", b"{}"))
    assert [asked.method for asked in fake.asked].count("POST") <= 2


#    what happened                    repeatable     whether it is sent again
REPEATS = {
    "nobody listened, once":         (ConnectionRefusedError(), False, True),
    "there was no socket, once":     (FileNotFoundError(), False, True),
    "it was lost, once":             (ConnectionLost("x"), False, False),
    "it was reset, once":            (ConnectionResetError(), False, False),
    "it was lost, repeatable":       (ConnectionLost("x"), True, True),
    "it took too long, repeatable":  (TimeoutError(), True, False),
    "it took too long, once":        (TimeoutError(), False, False),
    "not permitted, repeatable":     (PermissionError(), True, False),
}  # fmt: skip


@pytest.mark.parametrize(("error", "repeatable", "again"), REPEATS.values(), ids=REPEATS)
def test_when_a_request_is_sent_again(error, repeatable, again):
    call = routes.HttpCall("GET" if repeatable else "POST", "/x", b"{}")
    assert call.repeatable is repeatable
    assert may_repeat(call, error) is again


def test_after_a_restart_a_request_that_may_not_be_repeated_is_not(serve):
    client, fake = serve(lambda asked: DROP)
    revived = []
    client.revive = lambda start: revived.append(start)
    with pytest.raises(errors.ControllerUnavailable):
        client.ask(routes.HttpCall("POST", "/api/v1/once", b"{}"))
    assert (len(fake.asked), revived) == (1, [])


def test_a_request_that_is_to_be_sent_once_is_sent_once_even_if_it_is_repeatable(serve):
    client, fake = serve(lambda asked: DROP)
    client.revive = lambda start: pytest.fail("it must not wait for another controller")
    with pytest.raises(errors.ControllerUnavailable):
        client.ask(routes.version(), again=False)
    assert len(fake.asked) == 1


def test_a_retry_has_the_same_op_id_and_another_call_another(serve):
    replies = iter([reply({"jobs": []}), DROP, reply({"jobs": []}), reply({"jobs": []})])
    client, fake = serve(lambda asked: next(replies))
    for _ in range(3):
        client.submit({"command": ["true"]})
    ids = [asked.headers["idempotency-key"] for asked in fake.asked]
    assert len(ids) == 4
    assert ids[1] == ids[2]
    assert len(set(ids)) == 3


def test_threads_do_not_share_a_connection(serve):
    barrier = threading.Barrier(4)

    def answer(asked):
        barrier.wait(30)
        return reply({"path": asked.path})

    client, fake = serve(answer)
    found = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: client.node(f"n{n}")}))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {n: {"path": f"/api/v1/nodes/n{n}"} for n in range(4)}
    assert fake.connections == 4


def test_a_connection_in_use_is_closed_with_its_reply_once_the_client_is(serve):
    answering, closed = threading.Event(), threading.Event()

    def answer(asked):
        answering.set()
        closed.wait(30)
        return reply({})

    client, fake = serve(answer)
    thread = threading.Thread(target=client.status)
    thread.start()
    answering.wait(30)
    client.close()
    closed.set()
    thread.join(30)
    assert client._transport._idle == []
    assert fake.connections == 1


def test_a_forked_child_has_connections_of_its_own(serve):
    client, fake = serve(lambda asked: reply({"a": 1}))
    client.status()
    [connection] = client._transport._idle
    client._transport._pid = os.getpid() + 1  # as if we were the child
    assert client.status() == {"a": 1}
    assert fake.connections == 2
    assert connection not in client._transport._idle


def test_silence_is_said_to_be_silence(home):
    with FakeController(f"{home}/socket", lambda asked: threading.Event().wait(2) or DROP):
        client = Client(f"unix:{home}/socket", timeout_s=0.1)
        with pytest.raises(errors.ControllerUnavailable, match="does not answer in time"):
            client.status()


def test_nobody_there(home):
    with pytest.raises(errors.ControllerUnavailable, match="no controller listens at unix:/"):
        Client(f"unix:{home}/socket").status()


def test_the_body_that_was_refused_unread(home):
    """The reply is there though the rest of the request could not be sent."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listening.bind(f"{home}/socket")
    listening.listen()

    def refuse():
        connected, _ = listening.accept()
        connected.recv(1000)
        connected.sendall(problem(413, code="too_large", detail="too large"))
        connected.shutdown(socket.SHUT_RDWR)
        connected.close()

    thread = threading.Thread(target=refuse)
    thread.start()
    with Client(f"unix:{home}/socket") as client, pytest.raises(errors.GridError) as caught:
        client.submit({"command": ["x" * 10_000_000]})
    assert caught.value.code == "too_large"
    thread.join()
    listening.close()


#    what it shows                     status  told                                                        kind                     code               message                 hint
PROBLEMS = {
    "an error of ours":               (404, {"code": "unknown_job", "detail": "no job", "hint": "Look."},  errors.UnknownJob,       "unknown_job",     "no job",               "Look."),
    "one of a deeper kind":           (409, {"code": "lease_expired", "detail": "late"},                   errors.LeaseExpired,     "lease_expired",   "late",                 ""),
    "one that takes other arguments": (422, {"code": "never_fits", "detail": "too large"},                 errors.NeverFits,        "never_fits",      "too large",            ""),
    "one of a later version":         (409, {"code": "moon_phase", "detail": "new moon", "hint": "Wait."}, errors.GridError,        "moon_phase",      "new moon",             "Wait."),
    "one without a code":             (500, {"detail": "oops"},                                            errors.GridError,        "grid_error",      "oops",                 ""),
    "one with a title alone":         (500, {"title": "internal"},                                         errors.GridError,        "grid_error",      "internal",             ""),
    "one of no shape at all":         (500, {"detail": [{"loc": 1}]},                                      errors.GridError,        "grid_error",      "answered with status 500", ""),
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "told", "kind", "code", "message", "hint"), PROBLEMS.values(), ids=PROBLEMS
)
def test_problems_are_raised_as_what_they_are(serve, status, told, kind, code, message, hint):
    client, _ = serve(lambda asked: problem(status, **told))
    with pytest.raises(errors.GridError, match=message) as caught:
        client.job("17")
    assert type(caught.value) is kind
    assert caught.value.code == code
    assert caught.value.hint == hint
    assert caught.value.status == status


def test_what_else_a_problem_says_can_be_asked(serve):
    told = {"code": "invalid_amount", "detail": "no", "field": "cpu", "allowed": "a number"}
    client, _ = serve(lambda asked: problem(422, **told))
    with pytest.raises(errors.InvalidAmount) as caught:
        client.submit({})
    assert caught.value.field == "cpu"
    assert caught.value.allowed == "a number"


def test_a_failure_that_is_no_problem_json(serve):
    client, _ = serve(lambda asked: reply(b"<h1>Bad Gateway</h1>", 502, kind="text/html"))
    with pytest.raises(errors.GridError, match="status 502: <h1>Bad Gateway"):
        client.status()


#    what it shows                 text                       address
ADDRESSES = {
    "a unix socket":              ("unix:/run/x",              Address("/run/x")),
    "a host":                     ("http://localhost:7070",    Address("", "localhost", 7070)),
    "with a stroke":              ("http://h:1/",              Address("", "h", 1)),
    "an address of version 6":    ("http://[::1]:7070",        Address("", "::1", 7070)),
    "no port":                    ("http://localhost",         None),
    "a port that is none":        ("http://localhost:99999",   None),
    "not absolute":               ("unix:run/x",               None),
    "something else":             ("ftp://x:1",                None),
    "nothing":                    ("",                         None),
}  # fmt: skip


@pytest.mark.parametrize(("text", "address"), ADDRESSES.values(), ids=ADDRESSES)
def test_addresses(text, address):
    if address is None:
        with pytest.raises(errors.InvalidInput, match="not the address"):
            Address.parse(text)
    else:
        assert Address.parse(text) == address
        assert str(address) == text.rstrip("/")


def test_a_path_that_is_too_long_is_told():
    with pytest.raises(errors.InvalidInput, match="too long"):
        Client("unix:/" + "x" * 200).status()


# ---- another user at the other end

LISTENING = """
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[1])
os.chmod(sys.argv[1], 0o777)
listening.listen()
print("listening", flush=True)
connected, _ = listening.accept()
while data := connected.recv(1 << 16):
    print(data, flush=True)
print("end", flush=True)
time.sleep(60)
"""


@pytest.fixture
def shared():
    folder = tempfile.mkdtemp(prefix="gridhand-test-", dir="/tmp")
    os.chmod(folder, 0o1777)
    yield folder
    shutil.rmtree(folder)


@needs_root
@pytest.mark.parametrize("chosen", [False, True])
def test_nothing_is_sent_to_another_user(shared, chosen):
    path = f"{shared}/socket"
    with OtherProcess(LISTENING, path) as other:
        with (
            Client(Address(path, chosen=chosen)) as client,
            pytest.raises(errors.ControllerUnavailable, match=f"another user .uid {OTHER}"),
        ):
            client.status()
        assert other.stdout.readline() == "end\n"


@needs_root
def test_the_owner_of_a_folder_that_was_chosen_may_answer(shared):
    os.chmod(shared, 0o755)
    os.chown(shared, OTHER, OTHER)
    path = f"{shared}/socket"
    with OtherProcess(LISTENING, path), pytest.raises(errors.ControllerUnavailable):
        Address(path).open(5)
    os.unlink(path)
    with OtherProcess(LISTENING, path):
        Address(path, chosen=True).open(5).close()


@needs_root
@pytest.mark.parametrize("mode", [0o775, 0o757])
def test_a_folder_that_others_can_change_says_nothing_about_who_listens(shared, mode):
    os.chown(shared, OTHER, OTHER)
    os.chmod(shared, mode)
    path = f"{shared}/socket"
    with OtherProcess(LISTENING, path), pytest.raises(errors.ControllerUnavailable):
        Address(path, chosen=True).open(5)
