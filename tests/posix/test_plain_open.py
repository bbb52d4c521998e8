"""Paths that others wrote are opened without the magic links of /proc."""

import errno
import os

import pytest

from gridhand.posix.plain_open import open_plain, stat_plain


@pytest.fixture(autouse=True)
def kernel():
    try:
        os.close(open_plain("/", os.O_PATH))
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        pytest.skip("the kernel has no openat2")


def test_files_are_opened_and_made_as_usual(tmp_path):
    path = str(tmp_path / "new")
    fd = open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
    os.write(fd, b"text")
    assert not os.get_inheritable(fd)
    os.close(fd)
    assert stat_plain(path).st_size == 4
    (tmp_path / "link").symlink_to("new")
    assert stat_plain(str(tmp_path / "link")).st_size == 4
    fd = open_plain(os.fsencode(path), os.O_RDONLY | os.O_NONBLOCK)
    assert os.read(fd, 10) == b"text"
    os.close(fd)
    os.close(open_plain("/dev/null", os.O_RDONLY))


@pytest.mark.parametrize("path", ["/proc/self/fd/{fd}", "/dev/fd/{fd}", "/proc/self/cwd", "{link}"])
def test_a_magic_link_is_refused_wherever_it_is_in_the_path(tmp_path, path):
    with open(tmp_path / "file", "w") as file:
        (tmp_path / "link").symlink_to(f"/proc/self/fd/{file.fileno()}")
        path = path.format(fd=file.fileno(), link=tmp_path / "link")
        os.stat(path)  # is there
        with pytest.raises(OSError, match="symbolic links") as refused:
            open_plain(path, os.O_RDONLY)
        assert refused.value.errno == errno.ELOOP
        with pytest.raises(OSError, match="symbolic links"):
            stat_plain(path)


def test_errors_are_those_of_open(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_plain(str(tmp_path / "none"), os.O_RDONLY)
    with pytest.raises(ValueError, match="null"):
        open_plain("a\0b", os.O_RDONLY)
