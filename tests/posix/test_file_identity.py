"""The identity of a file, with `statx` and without it."""

import os

import pytest

from gridhand.posix import file_identity as module
from gridhand.posix.file_identity import file_identity


@pytest.fixture(params=["statx", "stat"])
def way(request, monkeypatch):
    if request.param == "stat":
        monkeypatch.setattr(module, "_call", None)


@pytest.mark.usefixtures("way")
def test_a_file_that_takes_the_place_of_another_has_another_identity(tmp_path):
    path, other = os.fsencode(tmp_path / "a"), os.fsencode(tmp_path / "b")
    for name in (path, other):
        with open(name, "wb") as file:
            file.write(b"the same")
    before = file_identity(path)
    with open(path, "ab") as file:
        file.write(b"more")
    assert before is not None
    assert file_identity(path) == before
    os.replace(other, path)
    assert file_identity(path) not in (None, before)
    os.unlink(path)
    assert file_identity(path) is None


def test_both_ways_agree_and_follow_links(tmp_path):
    path, link = tmp_path / "a", tmp_path / "link"
    path.touch()
    link.symlink_to(path)
    found = path.stat()
    expected = (found.st_ino, os.major(found.st_dev), os.minor(found.st_dev))
    for name in map(os.fsencode, (path, link)):
        assert file_identity(name) == module._identity_by_stat(name) == expected
