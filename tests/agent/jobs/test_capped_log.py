"""A log keeps its beginning and its end, at the places where they were written."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gridhand.agent.jobs import capped_log
from gridhand.agent.jobs.capped_log import CappedLog, Cut, read_range
from gridhand.agent.jobs.running_attempt import AttemptNote

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
    log = CappedLog(str(path), 64 * KB)
    assert log.trim() == log.finish() == 64 * KB
    assert read_range(str(path), 0, 1 << 30) == [(0, pattern(64 * KB))]


def test_a_growing_log_never_takes_much_more_than_its_cap(tmp_path):
    path, cap, size = tmp_path / "log", 64 * KB, 0
    log, whole = CappedLog(str(path), cap), pattern(4096 * KB)
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
    assert CappedLog(str(path), cap).finish() == 256 * KB
    assert on_disk(path) <= cap + 3 * 4096


@pytest.mark.parametrize("base", [1, 1000, 4095, 4096, 5000, 12_345])
def test_what_was_there_before_is_kept_whatever_the_offset_it_ends_at(tmp_path, base):
    path, cap = tmp_path / "log", 64 * KB
    before, whole = pattern(16 * KB)[:base], pattern(256 * KB)
    write(path, before + whole)
    log = CappedLog(str(path), cap, base)
    assert log.finish() == base + len(whole)
    (begin, head), (cut_at, cut), (at, tail) = read_range(str(path), 0, 1 << 30)
    assert (begin, cut_at, at) == (0, len(head), len(head) + cut.bytes)
    assert head[:base] == before
    assert head[base:] == whole[: len(head) - base]
    assert len(head) - base >= cap // 4
    assert tail == (before + whole)[at:]
    assert cap - cap // 4 <= len(tail) < cap - cap // 4 + 4096
    for offset in (0, base, base + 1, len(head) - 1, cut_at + 7, at + 7):
        pieces = read_range(str(path), offset, 100)
        assert pieces[0][0] == offset
        first = pieces[0][1]
        if cut_at <= offset < at:
            assert first == Cut(at - offset)
        else:
            assert first == (before + whole)[offset : offset + min(100, len(first))]


def test_a_log_that_is_not_over_its_cap_from_its_base_on_is_not_cut(tmp_path):
    path = tmp_path / "log"
    write(path, pattern(104 * KB))
    assert CappedLog(str(path), 64 * KB, 40 * KB).finish() == 104 * KB
    assert read_range(str(path), 0, 1 << 30) == [(0, pattern(104 * KB))]


def test_where_no_hole_can_be_made_it_is_cut_short(tmp_path, monkeypatch):
    monkeypatch.setattr(capped_log, "punch", lambda *_: False)
    path = tmp_path / "log"
    write(path, pattern(256 * KB))
    assert CappedLog(str(path), 64 * KB).finish() == 16 * KB
    assert path.read_bytes() == pattern(256 * KB)[: 16 * KB]


def test_what_is_not_there_or_no_file(tmp_path):
    assert CappedLog(str(tmp_path / "none"), 10).finish() == 0
    assert CappedLog("/dev/zero", 10).finish() == 0
    assert read_range(str(tmp_path / "none"), 0, 10) == []
    os.mkfifo(tmp_path / "pipe")
    assert CappedLog(str(tmp_path / "pipe"), 0).finish() == 0


@given(offset=st.integers(0, 300_000), limit=st.integers(0, 300_000))
def test_any_part_can_be_read(tmp_path_factory, offset, limit):
    path = tmp_path_factory.getbasetemp() / "cut"
    whole = pattern(256 * KB)
    if not path.exists():
        write(path, whole)
        CappedLog(str(path), 64 * KB).finish()
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


@pytest.mark.parametrize("of_user", [False, True])
def test_a_file_that_another_user_named_is_neither_looked_at_nor_cut(tmp_path, of_user):
    own, log = tmp_path / "own", tmp_path / "log"
    own.write_bytes(bytes(1 << 20))
    log.write_bytes(bytes(1 << 20))
    note = AttemptNote(
        log_bytes=1 << 16, stdout=str(own), stderr=str(log), kept=["stdout"], of_user=of_user
    )
    first, second = note.logs()
    assert first.size() == first.finish() == (0 if of_user else 1 << 20)
    assert second.finish() == 1 << 20
    assert own.stat().st_blocks * 512 >= 1 << 20
    assert log.stat().st_blocks * 512 < 1 << 20
    assert AttemptNote.decode(note.encode()) == note
