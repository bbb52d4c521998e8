"""Row 97: jobs, and whoever does not know the secret, have no say at agent and starter."""

import json
import os
import socket
import sys

import pytest

from gridhand.agent.starter import connection
from gridhand.agent.starter.admission import read_secret
from starter_client import StarterClient
from until import until

HIGHEST = 2**53 - 1

# What a job tries: with its own secret or none, in its own name or in none.
FORGED = """
import json, os, socket, sys
folder, secret = sys.argv[1], sys.argv[2]
one = socket.socket(socket.AF_UNIX)
one.settimeout(30)
one.connect(folder + "/socket")
hello = json.dumps({"do": "hello", "id": 1, "epoch": 2**53 - 1}).encode() + b"\\n"
try:
    one.sendall((open(folder + "/secret", "rb").read() + b"\\n" if secret == "stolen" else b"") + hello)
    print(one.recv(65536))
except OSError as error:
    print(b"")
"""


def secret_of(folder):
    fd = os.open(folder, os.O_RDONLY)
    try:
        return read_secret(fd)
    finally:
        os.close(fd)


@pytest.fixture(params=["agent", "starter"])
def folder(request, node, agent):
    return node.folder if request.param == "agent" else node.starter


def epoch_of(node):
    with StarterClient(node.starter, epoch=None) as starter:
        return starter.greeting["epoch"]


@pytest.mark.parametrize("secret", ["stolen", "none"])
def test_a_job_cannot_raise_the_epoch(node, agent, folder, secret):
    """Not even with the secret, which a process of the same user can read."""
    code = ["-S", "-E", "-c", FORGED, folder, secret]
    agent.start(node.order("j", sys.executable, *code))
    assert agent.end("j")["reason"] == "exit"
    assert node.output("j").strip() == b"b''"
    assert epoch_of(node) == 1
    assert agent.ask("list")["running"] == []  # the controller in charge still is


def test_a_child_of_a_job_without_its_marks_is_refused(node, agent, folder):
    child = ["/usr/bin/env", "-i", sys.executable, "-S", "-E", "-c", FORGED, folder, "stolen"]
    agent.start(node.order("j", "/bin/sh", "-c", '"$@"; true', "-", *child))
    assert agent.end("j")["reason"] == "exit"
    assert node.output("j").strip() == b"b''"
    assert epoch_of(node) == 1


@pytest.mark.parametrize("first", [b"", b"0" * 32 + b"\n"], ids=["no secret", "a wrong one"])
def test_nothing_is_answered_without_the_secret(folder, first):
    hello = json.dumps({"do": "hello", "id": 1, "epoch": HIGHEST}).encode() + b"\n"
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(30)
        raw.connect(os.path.join(folder, "socket"))
        raw.sendall(first + hello)
        with pytest.raises(ConnectionError):
            raise ConnectionResetError if not raw.recv(65536) else AssertionError("answered")


def test_the_secret_is_for_its_owner_only_and_is_put_back(node, agent, folder):
    path = os.path.join(folder, "secret")
    assert os.stat(path).st_mode & 0o777 == 0o600
    before = secret_of(folder)
    assert len(before) == 32
    os.unlink(path)
    until(lambda: secret_of(folder) == before)
    connection.connect(folder, 30).close()


def test_an_epoch_past_all_that_a_job_could_forge_once_is_taken(node, agent):
    """`grid serve --new-cluster` steps past it, and there is room for those that follow."""
    agent.ask("hello", epoch=HIGHEST)
    assert agent.ask("hello", epoch=HIGHEST + 1)["epoch"] == HIGHEST + 1
    later = agent.ask("hello", epoch=HIGHEST + 2)
    assert later["epoch"] == epoch_of(node) == HIGHEST + 2
