"""Files for their owner only, and replacing one as a whole."""

import errno
import os
import stat

import pytest

from gridhand.posix.private_files import (
    create_private_file,
    open_private_file,
    replace_and_open,
    replace_file,
    sync_folder,
)


@pytest.fixture(autouse=True)
def _open_umask():
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_file_is_made_once_and_kept(tmp_path):
    path = tmp_path / "file"
    for _ in range(2):
        fd = open_private_file(str(path))
        assert not os.get_inheritable(fd)
        os.close(fd)
        assert mode(path) == 0o600
        path.write_text("kept")
    assert path.read_text() == "kept"


def test_a_private_file_is_made_in_an_open_folder(tmp_path):
    folder = os.open(tmp_path, os.O_RDONLY)
    os.close(open_private_file("file", dir_fd=folder))
    os.close(folder)
    assert mode(tmp_path / "file") == 0o600


def test_a_new_file_is_nobody_elses(tmp_path):
    path = tmp_path / "secret"
    create_private_file(str(path), b"secret")
    assert (path.read_bytes(), mode(path)) == (b"secret", 0o600)
    with pytest.raises(FileExistsError):
        create_private_file(str(path), b"other")
    assert path.read_bytes() == b"secret"


def test_a_file_is_replaced(tmp_path):
    path = tmp_path / "file"
    create_private_file(f"{path}.new", b"left by a process that was killed, and longer")
    for content in (b"first", b"x" * 3_000_000, b""):
        replace_file(str(path), content)
        assert path.read_bytes() == content
        assert mode(path) == 0o600
        assert os.listdir(tmp_path) == ["file"]
    sync_folder(str(tmp_path))


def test_a_replaced_file_can_be_appended_to(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    fd = replace_and_open(str(path), b"new")
    os.write(fd, b", and more")
    os.close(fd)
    assert path.read_text() == "new, and more"


@pytest.mark.parametrize("call", ["write", "fdatasync", "rename"])
def test_a_failure_leaves_the_old_content_and_nothing_else(tmp_path, monkeypatch, call):
    path = tmp_path / "file"
    path.write_text("old")

    def fail(*_):
        raise OSError(errno.ENOSPC, "full")

    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        with pytest.raises(OSError, match="full"):
            replace_file(str(path), b"new")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file"]
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_short_write_is_continued(tmp_path, monkeypatch):
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:2]))
        replace_file(str(tmp_path / "file"), b"1234567")
    assert (tmp_path / "file").read_bytes() == b"1234567"
