"""Listening sockets and their files: what is noticed, and what is removed at the end."""

import os
import socket
import threading

import pytest

from gridhand.posix.socket_file import SocketFile


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "socket")


@pytest.fixture
def file(path):
    made = SocketFile(path)
    yield made
    made.close()


def test_it_listens_for_its_owner_only(file, path):
    assert os.stat(path).st_mode & 0o777 == 0o600
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(path)
    assert file.is_in_place()


def remove(path):
    os.unlink(path)


def replace(path):
    os.unlink(path)
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(path)


def link(path):
    os.rename(path, f"{path}.old")
    os.symlink(f"{path}.old", path)


@pytest.mark.parametrize("harm", [remove, replace, link])
def test_a_removed_or_replaced_file_is_noticed(file, path, harm):
    """Row 92: and the one that is there instead is not removed with it."""
    harm(path)
    left = os.path.lexists(path)
    assert not file.is_in_place()
    file.close()
    assert os.path.lexists(path) == left


def test_a_new_one_takes_the_place_of_what_was_left(file, path):
    second = SocketFile(path)
    assert second.is_in_place()
    assert not file.is_in_place()
    second.close()
    assert not os.path.exists(path)


def test_a_client_that_sees_the_file_is_never_refused(path):
    """The file is there before the socket listens otherwise, and for a moment gone when it is replaced."""
    files = [SocketFile(path)]
    refused = []

    def replace_often():
        files.extend(SocketFile(path) for _ in range(300))

    replacing = threading.Thread(target=replace_often)
    replacing.start()
    while replacing.is_alive():
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            try:
                client.connect(path)
            except BlockingIOError:
                pass  # it listens; so many have come already that another would wait for ever
            except OSError as error:
                refused.append(error)
    replacing.join()
    assert refused == []
    for made in files:
        made.close()


def test_it_listens_before_its_file_appears(path, monkeypatch):
    """The same as above, without a race: what appears under the path is connected to just before."""
    rename = os.rename

    def connect_and_rename(unready, ready):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(unready)
        rename(unready, ready)

    monkeypatch.setattr(os, "rename", connect_and_rename)
    SocketFile(path).close()
