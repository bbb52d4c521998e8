"""A log keeps its beginning and its end, at the places where they were written."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.agent import logs
from gridhand.agent.logs import Cut, Log, read_range

KB = 1 << 10


def write(path, data):
    with open(path, "ab") as file:
        file.write(data)


def on_disk(path):
    return os.stat(path).st_blocks * 512


def pattern(size):
    return b"".join(b"%07d\n" % number for number in range(size // 8))


def test_a_short_log_stays_whole(tmp_path):
    path = tmp_path / "log"
    write(path, pattern(64 * KB))
    log = Log(str(path), 64 * KB)
    assert log.trim() == log.finish() == 64 * KB
    assert read_range(str(path), 0, 1 << 30) == [(0, pattern(64 * KB))]


def test_a_growing_log_never_takes_much_more_than_its_cap(tmp_path):
    path, cap, size = tmp_path / "log", 64 * KB, 0
    log, whole = Log(str(path), cap), pattern(4096 * KB)
    while size < len(whole):
        write(path, whole[size : size + 24 * KB])
        size = min(len(whole), size + 24 * KB)
        assert log.trim() == size
        assert on_disk(path) <= cap + cap // 8 + 8 * KB
    assert log.finish() == len(whole)
    (_, head), (_, cut), (at, tail) = read_range(str(path), 0, 1 << 30)
    assert head == whole[: len(head)]
    assert tail == whole[at:]
    assert len(head) + cut.bytes + len(tail) == len(whole)
    assert len(head) >= cap // 4
    assert len(tail) >= cap - cap // 4


@pytest.mark.parametrize("cap", [0, 1, 4095, 4096, 10_000])
def test_odd_caps(tmp_path, cap):
    path = tmp_path / "log"
    write(path, pattern(256 * KB))
    assert Log(str(path), cap).finish() == 256 * KB
    assert on_disk(path) <= cap + 3 * 4096


def test_where_no_hole_can_be_made_it_is_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "punch", lambda *_: False)
    path = tmp_path / "log"
    write(path, pattern(256 * KB))
    assert Log(str(path), 64 * KB).finish() == 16 * KB
    assert path.read_bytes() == pattern(256 * KB)[: 16 * KB]


def test_what_is_not_there_or_no_file(tmp_path):
    assert Log(str(tmp_path / "none"), 10).finish() == 0
    assert Log("/dev/zero", 10).finish() == 0
    assert read_range(str(tmp_path / "none"), 0, 10) == []
    os.mkfifo(tmp_path / "pipe")
    assert Log(str(tmp_path / "pipe"), 0).finish() == 0


@given(offset=st.integers(0, 300_000), limit=st.integers(0, 300_000))
def test_any_part_can_be_read(tmp_path_factory, offset, limit):
    path = tmp_path_factory.getbasetemp() / "cut"
    whole = pattern(256 * KB)
    if not path.exists():
        write(path, whole)
        Log(str(path), 64 * KB).finish()
    at, room = offset, limit
    for begin, found in read_range(str(path), offset, limit):
        assert begin == at
        if isinstance(found, Cut):
            at += found.bytes
        else:
            assert found == whole[at : at + len(found)]
            at, room = at + len(found), room - len(found)
    assert room >= 0
    assert at >= len(whole) or room == 0
