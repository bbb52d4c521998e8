"""Environments: kept once however many need them, and gone when nobody does."""

import asyncio
import errno
import os
import stat

import pytest

from gridhand.controller.jobs import environment_files
from gridhand.controller.jobs.environment_files import Environments
from gridhand.core.errors import StoreFull, StoreUnavailable


@pytest.fixture
def folder(tmp_path):
    return str(tmp_path / "environments")


@pytest.fixture
def kept(folder):
    return Environments(folder)


def keep(kept, **variables):
    return asyncio.run(kept.keep(variables))


def test_the_same_variables_are_one_file_that_only_its_owner_reads(kept, folder):
    name = keep(kept, A="1", B="2")
    assert keep(kept, B="2", A="1") == name
    assert os.listdir(folder) == [name]
    found = os.stat(os.path.join(folder, name))
    assert stat.S_IMODE(found.st_mode) == 0o600
    assert Environments(folder).load(name) == {"A": "1", "B": "2"}


def test_a_file_goes_with_the_last_who_needs_it(kept, folder):
    name = keep(kept, A="1")
    kept.need(name, 3)
    kept.drop(name, 3)
    assert os.listdir(folder) == [name]
    kept.drop(name)
    assert os.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        kept.load(name)
    assert keep(kept, A="1") == name  # and is written anew for who comes after
    assert os.listdir(folder) == [name]


def test_at_the_start_what_open_jobs_need_stays_and_all_else_goes(kept, folder):
    name, other = keep(kept, A="1"), keep(kept, B="1")
    (leftover := open(os.path.join(folder, f"{name}.new"), "w")).close()  # noqa: SIM115
    assert leftover.closed
    again = Environments(folder)
    again.sweep([name, name])
    assert os.listdir(folder) == [name]
    assert other != name
    again.drop(name)
    assert os.listdir(folder) == [name]
    again.drop(name)
    assert os.listdir(folder) == []


def test_those_who_come_at_once_have_it_written_once(kept, folder, monkeypatch):
    written = []
    replace_file = environment_files.replace_file

    def note(path, text):
        written.append(os.path.basename(path))
        replace_file(path, text)

    monkeypatch.setattr(environment_files, "replace_file", note)

    async def at_once():
        return await asyncio.gather(*(kept.keep({"A": "1"}) for _ in range(20)))

    assert len(set(asyncio.run(at_once()))) == len(written) == 1
    kept.drop(written[0], 19)
    assert os.listdir(folder) == written


FAULTS = {
    "no space is told as such": (errno.ENOSPC, StoreFull),
    "a quota is told as no space": (errno.EDQUOT, StoreFull),
    "any other error may pass": (errno.EIO, StoreUnavailable),
}


@pytest.mark.parametrize(("code", "error"), FAULTS.values(), ids=FAULTS)
def test_what_cannot_be_written_is_not_needed_and_leaves_nothing(
    kept, folder, monkeypatch, code, error
):
    def fail(fd):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fdatasync", fail)
    with pytest.raises(error):
        keep(kept, A="1")
    assert os.listdir(folder) == []
    assert not kept._needed
    monkeypatch.undo()
    assert keep(kept, A="1") in os.listdir(folder)


def test_many_large_ones_are_not_all_kept_in_memory(kept):
    small = [keep(kept, A=str(number)) for number in range(100)]
    large = [keep(kept, A=f"{number}" * environment_files._LARGEST_CACHED) for number in range(3)]
    assert len(kept._cache) == environment_files._MOST_CACHED
    assert not kept._cache.keys() & set(large)
    assert kept.load(large[0])["A"] == "0" * environment_files._LARGEST_CACHED
    assert kept.load(small[0]) == {"A": "0"}


def test_no_name_is_no_variables(kept):
    assert kept.load("") == {}
    kept.drop("")
    assert kept.load("") == {}
