"""What a request over the network must pass before its token counts, and limits on what follows."""

import asyncio
import contextlib
import json
import socket

import pytest

from api_server import JOB, Api, Server
from gridhand.api import auth, slow_clients
from gridhand.api.browser_logins import CODE_S, SESSION_S, BrowserLogins
from gridhand.api.network_access import is_allowed_host
from gridhand.api.network_listener import open_listener
from gridhand.api.request_rates import RequestRates
from gridhand.config.blocks import HttpBlock
from gridhand.controller.listen_options import ListenOptions
from gridhand.core.errors import GridError, InvalidInput, TooManyRequests
from until import until


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    folder = tmp_path_factory.mktemp("network")
    config = folder / "c.yaml"
    config.write_text("http: {hosts: [grid.lab.example], requests_per_s: 50}\n")
    with Server(folder / "home", listen=ListenOptions(port=0), config=str(config)) as running:
        yield running


@pytest.fixture(scope="module")
def token(network):
    return Api(network).ok("POST", "/tokens", {"scope": "admin"})["token"]


@pytest.fixture
def api(network):
    """A client with a token of its own, which no other test has used up."""
    made = Api(network).ok("POST", "/tokens", {"scope": "admin"})
    return Api(network, network.url, made["token"])


@pytest.fixture
def anyone(network):
    return Api(network, network.url)


def authority(network):
    return network.url.removeprefix("http://")


# ---- names and pages

HOSTS = {
    "127.0.0.1:7070": True, "[::1]:7070": True, "localhost": True, "LOCALHOST:1": True, "10.0.0.7": True,
    "localhost.": True, "box:7070": True, "evil.example": False, "localhost.evil.example": False, "": False,
    "127.0.0.1.evil.example": False, "[::1": True, "evil.example:127.0.0.1": False, "0x7f.1": False,
}  # fmt: skip


@pytest.mark.parametrize("host", HOSTS)
def test_which_names_are_ours(host):
    """A page can rebind its own name to our address (DNS rebinding), but not an address."""
    assert is_allowed_host(host, {"localhost", "box"}) is HOSTS[host]


def test_a_foreign_name_is_answered_with_421_even_without_a_token(network, anyone, api):
    for one in (anyone, api):
        for path in ("/healthz", "/api/v1/version", "/login?code=x"):
            status, headers, _ = one.raw("GET", path, headers={"host": "evil.example"}, prefix="")
            assert (status, headers["content-type"]) == (421, "application/problem+json")
    assert api.raw("GET", "/version", headers={"host": "grid.lab.example:80"})[0] == 200


ORIGINS = {"https://evil.example": 401, "null": 401, "http://localhost": 401, None: 200, "own": 200}


@pytest.mark.parametrize("origin", ORIGINS)
def test_a_page_of_another_site_changes_nothing(network, api, origin):
    named = network.url if origin == "own" else origin
    headers = {} if named is None else {"origin": named}
    body = json.dumps({"cpu": 1}).encode()
    assert api.raw("POST", "/explain", body, headers)[0] == ORIGINS[origin]
    assert api.raw("GET", "/version", None, headers)[0] == 200


def test_other_sites_may_read_nothing(network, anyone, api):
    asks = {"origin": "https://evil.example", "access-control-request-method": "POST"}
    for one in (anyone, api):
        status, headers, _ = one.raw("OPTIONS", "/jobs", None, asks)
        assert status in (401, 405)
        assert [name for name in headers if name.startswith("access-control")] == []


def test_every_reply_has_the_headers_that_protect_pages(anyone, api):
    for one, path in ((anyone, "/healthz"), (anyone, "/nowhere"), (api, "/api/v1/version")):
        _, headers, _ = one.raw("GET", path, prefix="")
        assert headers["x-content-type-options"] == "nosniff"
        assert "frame-ancestors 'none'" in headers["content-security-policy"]
        assert "unsafe" not in headers["content-security-policy"]
        assert "server" not in headers


def test_only_the_kernel_says_who_a_peer_is(anyone):
    """A header for proxies, which uvicorn reads by default, would make anybody root."""
    for name in ("x-forwarded-for", "x-real-ip", "forwarded"):
        status, _, _ = anyone.raw("GET", "/version", headers={name: "uid"})
        assert status == 401


# ---- browsers


def test_the_printed_link_works_once_and_becomes_a_cookie(network, anyone):
    link = network.login_link.removeprefix(network.url)
    status, headers, _ = anyone.raw("GET", link, prefix="")
    assert (status, headers["location"]) == (303, "/")
    cookie, *flags = [part.strip() for part in headers["set-cookie"].split(";")]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(flags)
    assert cookie.startswith(f"gridhand_{authority(network).rpartition(':')[2]}=")
    assert anyone.raw("GET", link, prefix="")[0] == 401
    browser = {"cookie": cookie}
    assert anyone.raw("GET", "/tokens", headers=browser)[0] == 200
    body = json.dumps({"cpu": 1}).encode()
    assert anyone.raw("POST", "/explain", body, browser)[0] == 401
    own = {**browser, "origin": network.url}
    assert anyone.raw("POST", "/explain", body, own)[0] == 200
    assert anyone.raw("POST", "/explain", body, {**browser, "origin": "null"})[0] == 401
    assert anyone.raw("POST", "/logout", b"", own, prefix="")[0] == 200
    assert anyone.raw("GET", "/tokens", headers=browser)[0] == 401


@pytest.mark.parametrize(
    "cookie", ["", "x", "gridhand_1=a; b", 'gridhand="\\', "gridhand=" + "a" * 5000]
)
def test_a_cookie_that_is_none_is_refused(anyone, cookie):
    assert anyone.raw("GET", "/version", headers={"cookie": cookie})[0] in (400, 401)


def test_codes_and_sessions_end():
    now = [0.0]
    logins = BrowserLogins("ann", lambda: now[0])
    late, code = logins.make_code(), logins.make_code()
    secret = logins.exchange(code)
    session = logins.recognise(secret)
    assert (session.owner, session.scope, logins.is_current(session)) == ("ann", "admin", True)
    assert logins.recognise("another") is None
    now[0] = CODE_S
    assert logins.exchange(late) is None
    now[0] = SESSION_S
    assert (logins.recognise(secret), logins.is_current(session)) == (None, False)


# ---- limits


def test_a_bucket_fills_again():
    now = [0.0]
    rates = RequestRates(10, lambda: now[0])
    for _ in range(20):
        rates.take("a")
    with pytest.raises(TooManyRequests):
        rates.take("a")
    rates.take("b")
    now[0] = 0.1
    rates.take("a")
    with pytest.raises(TooManyRequests):
        rates.take("a")


def test_a_flood_of_one_token_is_refused_and_others_are_served(network, api):
    """Row 85."""
    seen = {}
    while 429 not in seen:
        status, headers, content = api.raw("GET", "/version")
        seen[status] = headers, content
    headers, content = seen[429]
    assert (headers["retry-after"], json.loads(content)["code"]) == ("1", "too_many_requests")
    other = Api(network).ok("POST", "/tokens", {"scope": "read", "owner": "other"})
    assert Api(network, network.url, other["token"])("GET", "/version")[0] == 200
    assert Api(network)("GET", "/version")[0] == 200
    until(lambda: api("GET", "/version")[0] == 200)


def test_a_token_has_so_many_open_replies(network, api, monkeypatch):
    monkeypatch.setattr("gridhand.api.network_access.MOST_LASTING", 2)
    job = Api(network).submit()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            connection, frames = api.follow(job)
            stack.enter_context(contextlib.closing(connection))
            assert next(frames)["event"] == "job"
        assert api("GET", "/version")[0] == 429
    until(lambda: api("GET", "/version")[0] == 200)
    Api(network).ok("POST", f"/jobs/{job}/cancel")


def test_connections_of_the_network_leave_room_for_users_of_the_machine(network, monkeypatch):
    """Row 81: the longest idle one of the network makes room, and none of the socket."""
    monkeypatch.setattr(auth, "most_connections", lambda: 20)
    own = socket.socket(socket.AF_UNIX)
    own.connect(network.home.socket)
    host, _, port = authority(network).rpartition(":")
    with contextlib.ExitStack() as stack:
        stack.enter_context(own)
        idle = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(30)]
        until(lambda: gone(idle[0]))
        assert not gone(own)
        assert not gone(idle[-1])
        assert Api(network)("GET", "/version")[0] == 200


def gone(connection):
    connection.settimeout(0.05)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def test_a_slow_client_of_the_network_is_given_up(network, monkeypatch):
    monkeypatch.setattr(slow_clients, "HEADER_S", 0.1)
    host, _, port = authority(network).rpartition(":")
    with socket.create_connection((host, int(port))) as slow:
        slow.sendall(b"GET /healthz HTTP/1.1\r\n")
        until(lambda: gone(slow))


ODD = {
    "two lengths": b"POST /api/v1/stop HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\n{}",
    "a length and chunks": b"POST /logout HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "no host": b"GET /api/v1/version HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: evil.example\r\n\r\n",
    "a folded header": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: a\r\n b\r\nauthorization: x\r\n\r\n",
    "a NUL": b"GET /healthz HTTP/1.1\r\nhost: local\0host\r\n\r\n",
    "a long header": b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: " + b"a" * 200_000 + b"\r\n\r\n",
    "no http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
}  # fmt: skip


@pytest.mark.parametrize("said", ODD.values(), ids=ODD)
def test_odd_requests_open_no_way_in(network, said):
    host, _, port = authority(network).rpartition(":")
    with socket.create_connection((host, int(port)), 20) as odd:
        answer = b""
        try:
            odd.sendall(said)
            odd.shutdown(socket.SHUT_WR)
            while data := odd.recv(65536):
                answer += data
        except TimeoutError:
            raise
        except OSError:
            pass  # it may hang up before it has heard everything
    assert b"protocol" not in answer  # of /version
    assert Api(network)("GET", "/version")[0] == 200


# ---- where it listens

SAFE = {
    "this machine": (ListenOptions(port=0), True),
    "its address": (ListenOptions("127.0.0.1", 0), True),
    "all addresses": (ListenOptions("0.0.0.0", 0), False),
    "all of IPv6": (ListenOptions("::", 0), False),
    "a star": (ListenOptions("*", 0), False),
    "all addresses, at one's own risk": (ListenOptions("0.0.0.0", 0, insecure=True), True),
}


@pytest.mark.parametrize("case", SAFE)
def test_beyond_this_machine_it_listens_only_with_encryption(case):
    options, allowed = SAFE[case]
    if not allowed:
        with pytest.raises(GridError) as raised:
            open_listener(options.over(HttpBlock()))
        assert "--tls-cert FILE --tls-key FILE" in raised.value.hint
        assert "--insecure" in raised.value.hint
        return
    listener = open_listener(options.over(HttpBlock()))
    with contextlib.closing(listener):
        assert listener.port > 0


def test_without_a_port_nothing_listens():
    assert open_listener(ListenOptions().over(HttpBlock())) is None
    assert ListenOptions(host="localhost").over(HttpBlock()).port == 7070


def test_the_command_line_comes_before_the_configuration():
    block = HttpBlock(host="::1", port=80, tls_cert="c", tls_key="k", insecure=True)
    assert ListenOptions().over(block) == ("::1", 80, "c", "k", True)
    given = ListenOptions("localhost", 81, "c2", "k2")
    assert given.over(block) == ("localhost", 81, "c2", "k2", True)
    with pytest.raises(InvalidInput):
        ListenOptions(tls_cert="c").over(HttpBlock())


def test_a_port_in_use_and_a_wrong_certificate_are_said(network, tmp_path):
    port = int(authority(network).rpartition(":")[2])
    with pytest.raises(GridError, match=f"cannot listen at .* port {port}"):
        open_listener(ListenOptions("127.0.0.1", port))
    with pytest.raises(InvalidInput, match="host"):
        open_listener(ListenOptions("no.such.name.invalid", 0))
    wrong = tmp_path / "c.pem"
    wrong.write_text("no certificate")
    with pytest.raises(GridError, match="certificate cannot be used"):
        open_listener(ListenOptions("localhost", 0, str(wrong), str(wrong)))


def test_jobs_of_a_token_have_its_owner(network):
    made = Api(network).ok("POST", "/tokens", {"scope": "submit", "owner": "ann"})
    ann = Api(network, network.url, made["token"])
    job = {name: value for name, value in JOB.items() if name != "folder"}
    assert ann.ok("POST", "/jobs", job)["jobs"][0]["owner"] == "ann"
    assert ann("POST", "/jobs", job, x_gridhand_owner="bob")[0] == 403
    assert ann.ok("GET", "/version")["owner"] == "ann"


def test_when_a_token_was_used_is_kept(network):
    made = Api(network).ok("POST", "/tokens", {"scope": "read"})
    assert made["last_used_at"] is None
    Api(network, network.url, made["token"]).ok("GET", "/version")
    [used] = [one["last_used_at"] for one in Api(network).ok("GET", "/tokens")["tokens"] if one["id"] == made["id"]]  # fmt: skip
    assert used is not None
    writing = network.controller.tokens.write_uses()
    asyncio.run_coroutine_threadsafe(writing, network.loop).result(20)
    stored = {one.id: one.used_at for one in network.store._store._tokens()}
    assert stored[made["id"]] is not None
