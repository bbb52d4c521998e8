"""A worker remembers its cluster, counts its starts, and has its folder to itself."""

import os

import pytest

from gridhand.core.errors import GridError
from gridhand.external.worker_folder import KEPT_S, WorkerFolder


@pytest.fixture
def folder(tmp_path):
    return WorkerFolder(str(tmp_path / "w"))


def test_every_start_has_a_higher_incarnation(folder):
    first = folder.begin()
    folder.remember(first._replace(incarnation=2**60, cluster="c", epoch=4))
    second = folder.begin()
    assert (second.incarnation, second.cluster, second.epoch) == (2**60 + 1, "c", 4)
    assert first.incarnation > 10**12  # the time, so that of two machines the later one counts


def test_two_workers_do_not_share_a_folder(folder):
    with folder.locked(), pytest.raises(GridError, match="another worker"), folder.locked():
        pass


def test_a_memory_that_cannot_be_read_is_an_error(folder):
    with open(os.path.join(folder.path, "worker.json"), "w") as file:
        file.write("[")
    with pytest.raises(GridError, match=r"worker\.json"):
        folder.begin()


def test_folders_of_long_ago_are_deleted(folder):
    old, new, running = (folder.make((job, 1)) for job in ("1", "2", "3"))
    for files in (old, running):
        os.utime(files.folder, (1, 1))
    folder.sweep([("3", 1)])
    assert [os.path.exists(one.folder) for one in (old, new, running)] == [False, True, True]
    assert KEPT_S == 7 * 24 * 3600


@pytest.mark.parametrize("job", ["../x", "", "a"])
def test_no_id_leads_out_of_the_folder(folder, job):
    with pytest.raises(GridError):
        folder.files((job, 1))
