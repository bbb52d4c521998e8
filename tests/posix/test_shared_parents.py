"""Folders at fixed names where other users can write: theirs are refused, links are not followed."""

import os
import stat

import pytest

from gridhand.posix.shared_parents import OpenFolder, UnsafeFolder, open_own_folder
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
