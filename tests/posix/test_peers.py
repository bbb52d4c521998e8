"""Who is at the other end of a unix socket."""

import os
import socket

import pytest

from gridhand.posix.peers import PeerCredentials, check_peer, peer_credentials


def test_the_peer_of_our_own_is_trusted():
    here, there = socket.socketpair()
    with here, there:
        peer = peer_credentials(here)
    assert peer == (os.getpid(), os.geteuid(), os.getegid())
    assert peer.is_trusted


@pytest.mark.parametrize(("uid", "trusted"), [(0, True), (1000, True), (1001, False)])
def test_our_user_and_root_are_trusted(monkeypatch, uid, trusted):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert PeerCredentials(7, uid, 1000).is_trusted is trusted


def test_a_stranger_is_refused_unless_it_is_the_one_expected(monkeypatch):
    here, there = socket.socketpair()
    monkeypatch.setattr("gridhand.posix.peers.peer_credentials", lambda _: PeerCredentials(7, 4, 4))
    with here, there:
        with pytest.raises(PermissionError, match=r"another user \(uid 4\)"):
            check_peer(here)
        check_peer(here, trusted_uid=4)
