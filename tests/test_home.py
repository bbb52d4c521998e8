"""Where a controller keeps its things, and when that place is refused."""

import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gridhand.core.errors import GridError, InvalidInput
from gridhand.home import LONGEST_SOCKET, Home
from other_user import needs_root, run_as_other

#    what it shows                        GRIDHAND_HOME  XDG_STATE_HOME  HOME    folder
PLACES = {
    "the one that is named":             ("/a/b",        "/x",           "/h",   "/a/b"),
    "the state folder":                  (None,          "/x",           "/h",   "/x/gridhand"),
    "the usual state folder":            (None,          None,           "/h",   "/h/.local/state/gridhand"),
    "an empty name is none":             ("",            "",             "/h",   "/h/.local/state/gridhand"),
    "a state folder has a full path":    (None,          "x",            "/h",   "/h/.local/state/gridhand"),
}  # fmt: skip


@pytest.mark.parametrize(("named", "state", "user", "folder"), PLACES.values(), ids=PLACES)
def test_where_it_is(monkeypatch, named, state, user, folder):
    given = {"GRIDHAND_HOME": named, "XDG_STATE_HOME": state, "HOME": user}
    for name, text in given.items():
        monkeypatch.delenv(name, raising=False)
        if text is not None:
            monkeypatch.setenv(name, text)
    assert Home.find(make=False).folder == folder


def test_a_name_is_from_the_current_folder(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GRIDHAND_HOME", "here")
    home = Home.find()
    assert home.folder == str(tmp_path / "here")
    assert (tmp_path / "here").is_dir()


def test_what_is_in_it():
    home = Home("/h")
    assert home.store == "/h/grid.db"
    assert home.owner == "/h/grid.db.owner"
    assert home.socket == "/h/socket"
    assert home.lock == "/h/start.lock"
    assert home.log == "/h/controller.log"
    assert home.agent == "/h/agent"
    assert home.starter == "/h/starter"
    assert home.jobs == "/h/jobs"
    assert home.environments == "/h/environments"
    assert home.job("17") == "/h/jobs/17"
    assert home.job("17_3") == "/h/jobs/17_3"
    assert repr(home) == "Home('/h')"


@pytest.mark.parametrize(
    "id", ["", "..", "17/..", "17_", "_3", "1_2_3", "x", "17\n", "-1", "١٧", "1 ", "17_-3"]
)
def test_an_id_that_is_none_leads_nowhere(id):
    with pytest.raises(InvalidInput):
        Home("/h").job(id)


def test_it_is_made_for_its_user_alone(tmp_path):
    before = os.umask(0)
    try:
        home = Home(str(tmp_path / "a" / "b"))
        home.make()
        home.make()
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(home.folder).st_mode) == 0o700


def test_one_that_is_open_to_others_is_refused(tmp_path):
    tmp_path.chmod(0o750)
    with pytest.raises(GridError, match=r"open to other users \(mode 750\)") as caught:
        Home(str(tmp_path)).make()
    assert f"chmod 700 {tmp_path}" in caught.value.hint


def test_one_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(GridError, match="belongs to another user"):
        Home(str(tmp_path)).make()


def test_a_file_is_no_home(tmp_path):
    (tmp_path / "x").touch()
    with pytest.raises(GridError, match="not a folder"):
        Home(str(tmp_path / "x")).make()
    with pytest.raises(GridError, match="cannot make"):
        Home(str(tmp_path / "x" / "y")).make()


def test_one_that_cannot_be_written_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(GridError, match="cannot be written") as refused:
        Home(str(tmp_path)).make()
    assert "chmod" not in refused.value.hint  # its mode is well, so its disk is read-only
    tmp_path.chmod(0o500)
    with pytest.raises(GridError, match="cannot be written") as refused:
        Home(str(tmp_path)).make()
    assert refused.value.hint == f"Close it with `chmod 700 {tmp_path}`."


def test_one_that_cannot_be_made_is_refused():
    with pytest.raises(GridError, match="cannot make /proc/nothing"):
        Home("/proc/nothing/here").make()


# ---- paths that are too long for a socket


@pytest.fixture
def long_home(tmp_path, monkeypatch):
    runtime = tmp_path / "run"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    # The real length of what pytest makes is not for us to say.
    monkeypatch.setattr("gridhand.home.LONGEST_SOCKET", len(str(runtime)) + 60)
    return Home(str(tmp_path / ("x" * 80)))


def test_a_long_path_has_its_socket_elsewhere(long_home, tmp_path):
    long_home.make()
    assert long_home.socket.startswith(str(tmp_path / "run" / "gridhand"))
    assert stat.S_IMODE(os.stat(tmp_path / "run" / "gridhand").st_mode) == 0o700


def test_two_long_paths_have_two_sockets(long_home):
    assert long_home.socket != Home(long_home.folder + "y").socket


def test_others_find_it_whatever_their_environment(long_home, tmp_path, monkeypatch):
    long_home.make()
    chosen = long_home.socket
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    long_home.make()
    assert long_home.socket == chosen


def test_when_the_runtime_folder_is_gone_there_is_another(long_home, tmp_path, monkeypatch):
    long_home.make()
    gone = long_home.socket
    os.rmdir(tmp_path / "run" / "gridhand")
    other = tmp_path / "ran"
    other.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(other))
    long_home.make()
    assert long_home.socket != gone
    assert long_home.socket.startswith(str(other))


def test_a_runtime_folder_that_is_open_is_refused(long_home, tmp_path):
    (tmp_path / "run" / "gridhand").mkdir()
    (tmp_path / "run" / "gridhand").chmod(0o777)
    with pytest.raises(GridError, match="open to other users"):
        long_home.make()


def test_without_a_runtime_folder_it_is_a_short_path_all_the_same(monkeypatch):
    monkeypatch.setattr("gridhand.home._is_ours", lambda _: False)
    path = Home("/" + "x" * 200).socket
    assert path.startswith(f"/tmp/gridhand-{os.geteuid()}/")
    assert len(path) <= LONGEST_SOCKET


@pytest.fixture
def shared(monkeypatch):
    """A folder that everybody can write to, in place of /tmp; there is no runtime folder."""
    folder = Path(tempfile.mkdtemp(prefix="gh-", dir="/tmp"))
    folder.chmod(0o1777)
    monkeypatch.setattr("gridhand.home._SHARED", str(folder))
    monkeypatch.setattr("gridhand.home._is_ours", lambda _: False)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.parametrize("planted", ["link", "folder"])
@needs_root
def test_a_name_that_another_user_took_is_avoided(shared, tmp_path, planted):
    name, victim = shared / f"gridhand-{os.geteuid()}", tmp_path / "victim"
    victim.mkdir(mode=0o700)
    if planted == "link":
        run_as_other("os.symlink(*sys.argv[1:])", victim, name)
    else:
        run_as_other("os.mkdir(sys.argv[1], 0o777)", name)
    home = Home(str(tmp_path / ("x" * 80)))
    home.make()
    made = Path(home.socket).parent
    assert made.parent == shared
    assert made != name
    assert (made.stat().st_uid, stat.S_IMODE(made.stat().st_mode)) == (os.geteuid(), 0o700)
    home.make()
    assert Path(home.socket).parent == made
    assert not list(victim.iterdir())


@needs_root
def test_a_folder_that_another_user_put_in_place_of_ours_is_left(shared, tmp_path):
    home = Home(str(tmp_path / ("x" * 80)))
    home.make()
    before = home.socket
    os.rmdir(os.path.dirname(before))  # as a restart of the machine does
    run_as_other("os.mkdir(sys.argv[1], 0o777)", os.path.dirname(before))
    home.make()
    assert home.socket != before
    assert os.stat(os.path.dirname(home.socket)).st_uid == os.geteuid()


@needs_root
def test_a_home_that_is_a_link_of_another_user_is_refused(shared, tmp_path):
    (tmp_path / "victim").mkdir(mode=0o700)
    run_as_other("os.symlink(*sys.argv[1:])", tmp_path / "victim", shared / "home")
    with pytest.raises(GridError, match="is a link of another user"):
        Home(str(shared / "home")).make()
    (tmp_path / "own").symlink_to(tmp_path / "victim")
    Home(str(tmp_path / "own")).make()


def test_a_runtime_folder_of_another_user_is_passed_over(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/tmp")  # others can write there
    assert not Home("/" + "x" * 200).socket.startswith("/tmp/gridhand/")


def test_something_in_the_way_of_the_link_is_told(long_home):
    os.makedirs(os.path.join(long_home.folder, "socket"), mode=0o700)
    os.chmod(long_home.folder, 0o700)
    with pytest.raises(GridError, match="is in the way"):
        long_home.make()


def test_the_longest_path_that_stays_is_one_the_system_takes(tmp_path):
    folder = f"{tmp_path}/"
    folder += "x" * (LONGEST_SOCKET - len(f"{folder}/socket"))
    home = Home(folder)
    home.make()
    assert len(home.socket) == LONGEST_SOCKET
    assert home.socket == f"{folder}/socket"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(home.socket)


def test_it_costs_nothing_to_import():
    code = "import sys; import gridhand.home; print(*sys.modules)"
    # Measuring coverage in the new process would load what this looks for.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert set(done.stdout.split()).isdisjoint(
        {"gridhand.core.errors", "hashlib", "json", "pathlib"}
    )


def test_nobody_is_told_to_close_a_folder_that_others_need(tmp_path):
    (tmp_path / "passwd").touch()
    tmp_path.chmod(0o755)
    with pytest.raises(GridError, match="open to other users") as caught:
        Home(str(tmp_path)).make()
    assert caught.value.hint == "Set GRIDHAND_HOME to a folder of your own."
    (tmp_path / "grid.db").touch()
    with pytest.raises(GridError) as caught:
        Home(str(tmp_path)).make()
    assert f"chmod 700 {tmp_path}" in caught.value.hint


# ---- the home of a machine-wide controller


@pytest.fixture
def machine_wide(tmp_path, monkeypatch):
    monkeypatch.setenv("GRIDHAND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", str(tmp_path / "run" / "socket"))
    return Home.machine_wide()


def test_all_but_the_socket_of_a_machine_wide_controller_is_closed(machine_wide, tmp_path):
    assert machine_wide.socket == str(tmp_path / "run" / "socket")
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "run").stat().st_mode) == 0o755
    Home.machine_wide()


def test_a_socket_where_others_could_replace_it_is_refused(machine_wide, tmp_path):
    (tmp_path / "run").chmod(0o777)
    with pytest.raises(GridError, match="open to other users"):
        Home.machine_wide()
    (tmp_path / "run").rmdir()
    (tmp_path / "run").symlink_to(tmp_path)
    with pytest.raises(GridError, match="a link"):
        Home.machine_wide()


def test_a_controller_of_one_user_does_not_take_the_jobs_of_all_users(machine_wide):
    with pytest.raises(GridError, match="for all users") as refused:
        Home.find()
    assert "--system" in refused.value.hint


def test_a_machine_wide_controller_does_not_take_the_home_of_one_user(tmp_path, monkeypatch):
    monkeypatch.setenv("GRIDHAND_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", str(tmp_path / "run" / "socket"))
    home = Home.find()
    Path(home.store).touch()
    with pytest.raises(GridError, match="of one user"):
        Home.machine_wide()
    assert not (tmp_path / "run").exists()
