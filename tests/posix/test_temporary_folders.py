"""Temporary folders: what killed processes left goes, and nothing else does."""

import os
import shutil
import tempfile

import pytest

from gridhand.posix import temporary_folders
from gridhand.posix.temporary_folders import make_temporary_folder, sweep


@pytest.fixture(autouse=True)
def parent(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(temporary_folders, "_LONGEST", 1000)
    return tmp_path


def test_a_folder_stays_while_its_lock_is_held_and_goes_after(parent):
    path, lock = make_temporary_folder(str(parent))
    os.mkdir(f"{path}/inside")
    for name in ("a", "inside/b"):
        with open(f"{path}/{name}", "w"):
            pass
    sweep()
    assert sorted(os.listdir(path)) == ["a", "inside", "lock"]
    os.close(lock)
    sweep()
    assert not os.path.exists(path)


def test_a_folder_of_that_name_without_a_lock_is_not_ours_to_remove(parent):
    mine = parent / "gridhand-pool-mine0000"
    mine.mkdir(mode=0o700)
    (mine / "precious").touch()
    os.utime(mine, (0, 0))
    sweep()
    assert (mine / "precious").exists()


def test_links_are_left_alone_with_what_they_lead_to(parent, tmp_path):
    target, lock = make_temporary_folder(str(parent))
    os.close(lock)
    elsewhere = tmp_path / "elsewhere"
    shutil.move(target, elsewhere)
    os.symlink(elsewhere, parent / "gridhand-pool-link0000")
    sweep()
    assert (elsewhere / "lock").exists()


def test_a_link_for_a_lock_is_not_opened(parent, tmp_path):
    folder = parent / "gridhand-pool-abcdefgh"
    folder.mkdir(mode=0o700)
    (folder / "precious").touch()
    (tmp_path / "file").touch()
    (folder / "lock").symlink_to(tmp_path / "file")
    sweep()
    assert (folder / "precious").exists()


def test_an_unfinished_folder_is_given_time(parent, monkeypatch):
    path = parent / "gridhand-new-abcdefgh"
    path.mkdir(mode=0o700)
    (path / "lock").touch()
    sweep()
    assert path.exists()
    monkeypatch.setattr(temporary_folders, "_YOUNG_S", 0.0)
    sweep()
    assert not path.exists()
