"""`grid serve`, `stop`, `service`, `doctor`, `config`, `check` and `completion`."""

import json
import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
from types import ModuleType

import pytest

from gridhand import Grid
from gridhand.cli.commands import doctor, serve, service
from gridhand.cli.support import machine_checks
from gridhand.controller.local_controller import StartOptions
from gridhand.home import Home
from gridhand.posix import procfs
from gridhand.posix.shared_parents import UnsafeFolder
from other_user import OTHER, needs_root


def home():
    return os.environ["GRIDHAND_HOME"]


# ---- serve and stop


def test_serve_passes_everything_on(grid, monkeypatch):
    told = []
    module = ModuleType("gridhand.api.http_server")
    module.serve = lambda home, *given, **more: told.append((home.folder, *given, more)) or 3
    monkeypatch.setitem(sys.modules, "gridhand.api.http_server", module)
    words = ("--store", "sqlite:////s", "--new-cluster", "--virtual-node", "a:cpu=4,memory=2GB",
             "--config", "/lab.yaml")  # fmt: skip
    assert grid("serve", "--ready-fd", "7", *words) == 3
    nodes = {"a": "cpu=4 memory=2GB"}
    start = StartOptions("sqlite:////s", "/lab.yaml", new_cluster=True, virtual_nodes=nodes)
    assert told == [(home(), start, {"ready_fd": 7, "announce": None})]
    assert not os.path.exists(Home(home()).nodes), "written before the controller has started"


class Executed(BaseException):
    """The process would have become another one."""


@pytest.mark.parametrize("words", [["--store", "URL"], ["--store=URL"]])
def test_a_password_does_not_stay_among_the_arguments(grid, monkeypatch, words):
    """Others can read those of a process, and not its variables."""
    url = "postgresql://ann:geheim@db/grid"
    words = [word.replace("URL", url) for word in words]

    def execute(_, argv):
        raise Executed(argv)

    monkeypatch.setattr(os, "execv", execute)
    monkeypatch.setattr(sys, "orig_argv", ["python", "-m", "x", "serve", *words, "--new-cluster"])
    monkeypatch.setenv("GRIDHAND_STORE", "")  # so that it is put back at the end
    with pytest.raises(Executed) as caught:
        grid("serve", *words, "--new-cluster")
    assert caught.value.args == ([sys.executable, "-m", "x", "serve", "--new-cluster"],)
    assert os.environ["GRIDHAND_STORE"] == url


def test_the_store_may_be_a_variable_which_nobody_inherits(grid, monkeypatch):
    told = []
    module = ModuleType("gridhand.api.http_server")
    module.serve = lambda _, start, **more: told.append((start.store, dict(os.environ))) or 0
    monkeypatch.setitem(sys.modules, "gridhand.api.http_server", module)
    monkeypatch.setenv("GRIDHAND_STORE", "postgresql://ann:geheim@db/grid")
    assert grid("serve") == 0
    [(store, environment)] = told
    assert store == "postgresql://ann:geheim@db/grid"
    assert "GRIDHAND_STORE" not in environment


def test_the_configuration_file_is_the_one_of_the_environment_or_of_the_folder(
    grid, monkeypatch, tmp_path
):
    told = []
    module = ModuleType("gridhand.api.http_server")
    module.serve = lambda _, start, **more: told.append(start.config) or 0
    monkeypatch.setitem(sys.modules, "gridhand.api.http_server", module)
    monkeypatch.chdir(tmp_path)
    assert grid("serve") == 0
    (tmp_path / "cluster_config.yaml").write_text("name: lab")
    assert grid("serve") == 0
    monkeypatch.setenv("GRIDHAND_CONFIG", "lab.yaml")
    assert grid("serve") == 0
    assert grid("serve", "--config", "/other.yaml") == 0
    here = str(tmp_path)
    assert told == [None, f"{here}/cluster_config.yaml", f"{here}/lab.yaml", "/other.yaml"]


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as one:
        yield one
        one.kill()


#    what it shows                arguments          what is asked
STOPS = {
    "refusing is usual":         ([],                "refuse"),
    "jobs may be kept":          (["--keep-jobs"],   "keep"),
    "or be killed":              (["--kill-jobs"],   "kill"),
}  # fmt: skip


@pytest.mark.parametrize(("arguments", "asked"), STOPS.values(), ids=STOPS)
def test_stop_waits_for_the_end_of_the_process(fake, grid, capsys, process, arguments, asked):
    fake.answers["GET", "/version"] = fake.version(pid=process.pid)
    fake.answers["POST", "/stop"] = lambda _: process.stdin.close() or {}
    assert grid("stop", *arguments) == 0
    assert process.poll() is not None or _is_gone(process.pid)
    assert capsys.readouterr().out.startswith(f"stopped the controller (pid {process.pid})")
    assert fake.body("POST", "/stop") == {"jobs": asked}


def _is_gone(pid):
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0] == "Z"


def test_stop_refuses_while_jobs_run(fake, grid, capsys):
    problem = {
        "detail": "3 jobs are queued or running", "code": "jobs_running",
        "hint": "`grid stop --keep-jobs` or `grid stop --kill-jobs`.",
    }  # fmt: skip
    fake.answers["POST", "/stop"] = (409, problem)
    assert grid("stop") == 125
    err = capsys.readouterr().err
    assert "3 jobs" in err
    assert "--keep-jobs" in err
    assert "--kill-jobs" in err


def test_there_is_nothing_to_stop(grid, capsys):
    assert grid("stop") == 0
    assert capsys.readouterr().out == "no controller is running\n"
    assert grid("stop", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"stopped": False, "pid": None}
    assert not os.path.exists(home())


def sign(name, pid):
    """Make the lock file of a controller, agent or starter that this process could hold."""
    path = os.path.join(home(), name)
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    with open(path, "w") as file:
        file.write(f"{pid} {procfs.read_process(pid).start}\n")


def test_stop_finds_a_controller_without_a_socket(grid, capsys, process, monkeypatch):
    """Row 92: only a signal reaches it, and that keeps jobs."""
    monkeypatch.setattr(serve, "_SOCKET_S", 0)
    sign("controller.lock", process.pid)
    assert grid("stop") == 125
    assert f"(pid {process.pid}) runs" in capsys.readouterr().err
    assert process.poll() is None
    assert grid("stop", "--keep-jobs") == 0
    assert f"stopped the controller (pid {process.pid})" in capsys.readouterr().out
    assert process.wait() == -signal.SIGTERM


# ---- service


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    """A stand-in that notes what it was asked."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "systemctl"
    program.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n[ "$2" != fail ]\n')
    program.chmod(0o755)
    return tmp_path


def test_the_unit_is_written_and_started(systemd, grid, capsys):
    assert grid("service", "install") == 0
    unit = systemd / "config/systemd/user/gridhand.service"
    text = unit.read_text()
    for line in (
        "KillMode=process",
        "Delegate=yes",
        "Restart=on-failure",
        "gridhand.cli.main serve",
    ):
        assert line in text
    assert f"GRIDHAND_HOME={home()}" in text
    assert (
        systemd / "asked"
    ).read_text() == "--user daemon-reload\n--user enable --now gridhand.service\n"
    assert f"wrote {unit}\n" in capsys.readouterr().out
    assert grid("service", "show") == 0
    assert capsys.readouterr().out == text


def test_a_controller_that_runs_already_is_named(systemd, fake, grid, capsys):
    assert grid("service", "install") == 0
    assert (
        "a controller is running (pid 4242); stop it with `grid stop --keep-jobs`"
        in capsys.readouterr().out
    )


def test_the_unit_is_removed(systemd, grid, capsys):
    unit = systemd / "config/systemd/user/gridhand.service"
    assert grid("service", "uninstall", "--json") == 0
    assert "there is no" in capsys.readouterr().out
    assert grid("service", "install", "--json") == 0
    assert json.loads(capsys.readouterr().out)["unit"] == str(unit)
    assert grid("service", "uninstall") == 0
    assert not unit.exists()
    assert "disable --now gridhand.service" in (systemd / "asked").read_text()


def test_without_systemd_it_says_what_was_not_done(systemd, grid, capsys):
    (systemd / "bin" / "systemctl").unlink()
    assert grid("service", "install") == 125
    assert (
        "systemctl not found: `systemctl --user daemon-reload` was not run"
        in capsys.readouterr().out
    )


def test_what_systemd_refuses_is_told(systemd, grid, capsys):
    (systemd / "bin" / "systemctl").write_text("#!/bin/sh\necho no bus >&2\nexit 1\n")
    assert grid("service", "install") == 125
    out, err = capsys.readouterr()
    assert "`systemctl --user daemon-reload` failed: no bus" in out
    assert err.startswith("error: the service was not started\nhint: ")
    assert "enable-linger" not in out


def test_strange_paths_are_quoted_as_systemd_reads_them(systemd, grid, capsys, monkeypatch):
    monkeypatch.setenv("GRIDHAND_HOME", '/a b/100%/"c"')
    assert grid("service", "show") == 0
    assert 'Environment="GRIDHAND_HOME=/a b/100%%/\\"c\\""\n' in capsys.readouterr().out


@pytest.fixture
def system_units(systemd, monkeypatch):
    monkeypatch.setattr(service, "_SYSTEM_UNITS", str(systemd / "system"))
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    return systemd / "system"


def test_the_unit_for_all_users_is_written_and_started(
    systemd, system_units, grid, capsys, monkeypatch
):
    monkeypatch.setattr("gridhand.posix.shared_parents.check_root_only", lambda path: None)
    assert grid("service", "install", "--system", "--config", "/etc/grid lab.yaml") == 0
    text = (system_units / "gridhand.service").read_text()
    for line in (
        ' -E -s -P -m gridhand.cli.main serve --system --config "/etc/grid lab.yaml"\n',
        "\nRuntimeDirectory=gridhand\n",
        "\nStateDirectoryMode=0700\n",
        "\nKillMode=process\n",
        "\nWantedBy=multi-user.target\n",
    ):
        assert line in text
    assert (systemd / "asked").read_text() == "daemon-reload\nenable --now gridhand.service\n"
    assert "enable-linger" not in capsys.readouterr().out
    assert grid("service", "uninstall", "--system") == 0
    assert not (system_units / "gridhand.service").exists()


def test_root_does_not_run_code_that_others_can_change(system_units, grid, capsys, monkeypatch):
    def refuse(path):
        raise UnsafeFolder(f"other users can change {path}")

    monkeypatch.setattr("gridhand.posix.shared_parents.check_root_only", refuse)
    assert grid("service", "install", "--system") == 125
    assert "root must not use" in capsys.readouterr().err
    assert not system_units.exists()


@needs_root
@pytest.mark.parametrize("changed", ["home", "run", "config"])
def test_a_machine_wide_controller_uses_nothing_that_others_can_change(
    grid, capsys, monkeypatch, changed
):
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("GRIDHAND_HOME", f"{folder}/home/home")
        monkeypatch.setenv("GRIDHAND_MACHINE_SOCKET", f"{folder}/run/run/socket")
        for name in ("home", "run", "config"):
            os.mkdir(f"{folder}/{name}", 0o755)
        os.mkdir(f"{folder}/config/file", 0o755)
        os.chown(f"{folder}/{changed}", OTHER, OTHER)
        assert grid("serve", "--system", "--config", f"{folder}/config/file") == 125
        assert f"uid {OTHER}" in capsys.readouterr().err


def test_only_root_serves_all_users(system_units, grid, capsys, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for words in (("service", "install", "--system"), ("serve", "--system")):
        assert grid(*words) == 125
        assert "root" in capsys.readouterr().err
    assert not system_units.exists()


def test_a_configuration_belongs_to_the_service_of_all_users(systemd, grid, capsys):
    assert grid("service", "install", "--config", "x.yaml") == 125
    assert "--system" in capsys.readouterr().err


# ---- config


def test_config_says_where_settings_come_from(grid, capsys, monkeypatch):
    assert grid("config") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["SETTING", "VALUE", "FROM"]
    assert lines[1].split() == ["home", home(), "GRIDHAND_HOME"]
    monkeypatch.setenv("GRIDHAND_ADDRESS", "unix:/x")
    assert grid("config", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["address"] == {"value": "unix:/x", "from": "GRIDHAND_ADDRESS"}
    assert found["store"]["value"] == f"sqlite:///{home()}/grid.db"
    assert all(one.keys() == {"value", "from"} for one in found.values())
    assert grid("config", "path") == 0
    assert capsys.readouterr().out == f"{home()}\n"
    assert not os.path.exists(home())


# ---- doctor


def found(name, *, of=None):
    """The findings under a name, and the worst of their levels."""
    all_of_it = doctor.findings(of or Home(home()))
    wanted = [one for one in all_of_it if one.what == name]
    return wanted, max((one.level for one in wanted), key=["ok", "warn", "fail"].index)


def test_a_new_installation_is_well(grid, capsys):
    assert grid("doctor") == 0
    out = capsys.readouterr().out
    for name in (
        "python",
        "home",
        "disk",
        "socket",
        "sqlite",
        "controller",
        "limits",
        "gpus",
        "clock",
    ):
        assert f"  {name}" in out
    assert not os.path.exists(home())


def test_doctor_as_json(grid, capsys):
    assert grid("doctor", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert all(one.keys() == {"what", "level", "text", "hint"} for one in told)


def test_an_open_home_must_be_mended(grid, capsys):
    os.makedirs(home(), mode=0o755)
    assert grid("doctor") == 1
    assert f"Close it with `chmod 700 {home()}`." in capsys.readouterr().out


def test_a_full_disk_is_found(monkeypatch):
    room = os.statvfs("/")
    full = type("Room", (), {"f_bavail": 0, "f_frsize": 1, "f_files": 9, "f_favail": 0})
    monkeypatch.setattr(machine_checks.os, "statvfs", lambda _: full)
    assert found("disk")[1] == "fail"
    monkeypatch.setattr(machine_checks.os, "statvfs", lambda _: room)
    assert found("disk")[1] != "fail"


@pytest.mark.parametrize(("version", "told"), [((3, 51, 2), True), ((3, 51, 3), False)])
def test_the_fault_of_sqlite_is_told_and_is_nothing_to_mend(monkeypatch, version, told):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", version)
    [one], level = found("sqlite")
    assert (level, one.hint) == ("ok", "")
    assert sqlite3.sqlite_version in one.text
    assert ("rare bug" in one.text) == told


def test_a_controller_of_another_version(fake, capsys):
    fake.answers["GET", "/version"] = fake.version(version="9.9")
    [one], level = found("controller")
    assert level == "warn"
    assert "grid stop --keep-jobs" in one.hint


def test_an_address_where_nobody_answers(monkeypatch):
    monkeypatch.setenv("GRIDHAND_ADDRESS", "unix:/no/such/socket")
    assert found("controller")[1] == "fail"


def test_the_last_words_of_a_controller_that_is_gone():
    os.makedirs(home(), mode=0o700)
    with open(f"{home()}/controller.log", "w") as file:
        file.write("all is well\nERROR the store is damaged\n")
    [one], level = found("controller log")
    assert level == "warn"
    assert "the store is damaged" in one.text


def test_a_controller_without_a_socket_is_found():
    """Row 92."""
    sign("controller.lock", os.getpid())
    [one], level = found("controller")
    assert level == "fail"
    assert f"pid {os.getpid()} runs" in one.text


@pytest.mark.parametrize("what", ["agent", "starter"])
def test_an_agent_or_starter_without_a_socket_is_found(what):
    """Row 92: a socket that was left behind is nobody's."""
    import socket

    os.makedirs(f"{home()}/{what}", mode=0o700)
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(f"{home()}/{what}/socket")
        [finding], level = found(what)
        assert (finding.text[:11], level) == ("not running", "ok")
        sign(f"{what}/lock", os.getpid())
        [finding], level = found(what)
        assert level == "warn"
        assert f"pid {os.getpid()} runs" in finding.text
        one.listen()
        assert found(what)[1] == "ok"


def test_a_long_path_is_no_problem(tmp_path):
    [one], level = found("socket", of=Home(str(tmp_path / ("x" * 120))))
    assert level == "ok"
    assert "over 100 bytes" in one.text


def test_what_cannot_be_looked_at_is_told(monkeypatch):
    monkeypatch.setattr(doctor, "_CHECKS", (machine_checks.check_limits,))
    monkeypatch.setattr(machine_checks, "_own_cgroup", lambda: 1 / 0)
    [one] = doctor.findings(Home(home()))
    assert (one.what, one.level) == ("limits", "warn")
    assert "division by zero" in one.text


#    what it shows                   kind   level
CGROUPS = {
    "none":                         ("",    "warn"),
    "one that may be written":      ("v1",  "ok"),
    "a second one without memory":  ("v2",  "warn"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "level"), CGROUPS.values(), ids=CGROUPS)
def test_whether_limits_are_enforced(monkeypatch, tmp_path, kind, level):
    monkeypatch.setattr(machine_checks, "_own_cgroup", lambda: (kind, str(tmp_path)))
    assert found("limits")[1] == level
    if kind == "v2":
        (tmp_path / "cgroup.controllers").write_text("cpu memory pids\n")
        assert found("limits")[1] == "ok"


@pytest.mark.parametrize(("how", "level"), [("cgroup", "ok"), ("measured", "warn")])
def test_a_running_agent_knows_best_whether_limits_are_enforced(fake, how, level):
    fake.answers["GET", "/status"] = {"agent": {"enforced": {"memory": how, "pids": "cgroup"}}}
    assert found("limits")[1] == level


# ---- check without --store


def test_check_proves_the_own_store(grid, capsys):
    os.makedirs(home(), mode=0o700)
    with Grid.at(f"{home()}/grid.db") as one:
        one.register_node("a", cpu=1)
    assert grid("check") == 0
    assert capsys.readouterr().out.endswith("clean\n")


def test_check_asks_the_controller_where_its_store_is(fake, grid, capsys, tmp_path):
    with Grid.at(str(tmp_path / "elsewhere.db")) as one:
        one.register_node("a", cpu=1)
    store = f"sqlite:///{tmp_path}/elsewhere.db"
    fake.answers["GET", "/status"] = {"controller": {"store": store}}
    assert grid("check", "--json") == 0
    assert json.loads(capsys.readouterr().out)["url"] == store


def test_check_of_nothing(grid, capsys):
    assert grid("check") == 125
    err = capsys.readouterr().err
    assert f"there is no store in {home()}" in err
    assert "--store" in err


# ---- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(grid, capsys, shell):
    assert grid("completion", shell) == 0
    out = capsys.readouterr().out
    assert f"_GRID_COMPLETE={shell}_complete" in out
