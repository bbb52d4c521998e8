"""Folders at fixed names where other users can write: theirs are refused, links are not followed."""

import os
import stat
import tempfile
from pathlib import Path

import pytest

from gridhand.posix.shared_parents import (
    OpenFolder,
    UnsafeFolder,
    check_root_only,
    open_own_folder,
)
from other_user import OTHER, needs_root


@pytest.fixture
def shared(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.mark.parametrize("mode", [0o700, 0o755])
def test_a_folder_is_made_once_and_opened_again(shared, mode):
    before = os.umask(0o077)
    try:
        first = open_own_folder(str(shared / "ours"), mode)
    finally:
        os.umask(before)
    again = open_own_folder(str(shared / "ours"), mode)
    assert os.path.samestat(os.fstat(first), os.fstat(again))
    assert stat.S_IMODE(os.fstat(again).st_mode) == mode
    os.close(first)
    os.close(again)


def test_a_link_is_not_followed(shared, tmp_path):
    (tmp_path / "target").mkdir(mode=0o700)
    (shared / "ours").symlink_to(tmp_path / "target")
    with pytest.raises(UnsafeFolder, match="is a link"):
        open_own_folder(str(shared / "ours"))
    (shared / "nowhere").symlink_to(tmp_path / "nothing")
    with pytest.raises(UnsafeFolder, match="is a link"):
        open_own_folder(str(shared / "nowhere"))
    assert not (tmp_path / "nothing").exists()


def test_a_folder_that_others_may_change_is_refused(shared):
    (shared / "ours").mkdir()
    (shared / "ours").chmod(0o755)
    with pytest.raises(OpenFolder, match=r"open to other users \(mode 755\)"):
        open_own_folder(str(shared / "ours"))
    os.close(open_own_folder(str(shared / "ours"), 0o755))


@needs_root
def test_a_folder_of_another_user_is_refused(shared):
    (shared / "ours").mkdir(mode=0o700)
    os.chown(shared / "ours", OTHER, OTHER)
    with pytest.raises(UnsafeFolder, match=f"another user .uid {OTHER}"):
        open_own_folder(str(shared / "ours"))


def test_a_parent_where_others_can_replace_our_folder_is_refused(shared):
    shared.chmod(0o777)  # not sticky
    with pytest.raises(UnsafeFolder, match="other users can replace"):
        open_own_folder(str(shared / "ours"))
    assert not (shared / "ours").exists()


@needs_root
def test_a_parent_of_another_user_is_refused(shared):
    os.chown(shared, OTHER, OTHER)
    with pytest.raises(UnsafeFolder, match=f"another user .uid {OTHER}"):
        open_own_folder(str(shared / "ours"))


# ---- code that root runs


@pytest.fixture
def code():
    with (
        tempfile.TemporaryDirectory() as folder
    ):  # in /tmp, where others may write, but not replace
        path = Path(folder, "lib", "code")
        path.mkdir(parents=True)
        yield path


@needs_root
def test_a_path_that_only_root_can_change(code):
    check_root_only(str(code))
    (code / "link").symlink_to("../code")
    check_root_only(str(code / "link"))


@needs_root
@pytest.mark.parametrize("name", [".", "..", "link"])
def test_a_path_that_others_can_change_anywhere_is_refused(code, name):
    elsewhere = code.parent / "elsewhere"
    elsewhere.mkdir()
    (code / "link").symlink_to(elsewhere)
    changed = elsewhere if name == "link" else code / name
    for change in (lambda: os.chown(changed, OTHER, 0), lambda: changed.chmod(0o777)):
        os.chown(changed, 0, 0)
        change()
        with pytest.raises(UnsafeFolder):
            check_root_only(str(code / "link" if name == "link" else code))


@needs_root
def test_a_circle_of_links_is_refused(code):
    (code / "a").symlink_to("b")
    (code / "b").symlink_to("a")
    with pytest.raises(UnsafeFolder, match="links"):
        check_root_only(str(code / "a"))
