"""`grid check --store` and `grid migrate-store`, as people and scripts meet them."""

import contextlib
import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

import store_writer
from gridhand import Grid
from gridhand.cli.main import COMMANDS, make_cli, run
from gridhand.core.model.call_record import CallRecord
from gridhand.store.urls import store_at
from postgres_server import sql


def grid_command(*arguments):
    return run(make_cli(COMMANDS), arguments)


def fill(url):
    with Grid.at(url, owner="ann") as grid:
        grid.register_node("a", cpu=8, memory="8GB", gpus=[{"memory": "16GB"}])
        grid.allocate(cpu=1, holder="gone").release()
        grid.allocate(cpu=2, holder="kept", op_id="kept")
        grid.allocate(gpu=0.5, holder="half")
        grid.allocate_group([{"cpu": 1}, {"cpu": 1}], holder="gang")


def add_jobs(url):
    """Job 1 runs, job 2 waits, job 3 has ended; event 8 is the first of theirs."""
    store = store_at(url)
    epoch = store.open().epoch
    contents = store.load()
    now = max(event.at for event in store.events())
    writer = store_writer.Writer(store, epoch=epoch, next_number=contents.next_number, now=now)
    writer.ledger.load(contents.nodes, contents.allocations)
    running, _, brief = (writer.submit() for _ in range(3))
    writer.start(running)
    writer.end(writer.start(brief))
    writer.commit()
    store.close()


@pytest.fixture
def with_jobs(path):
    add_jobs(path)
    return path


@pytest.fixture
def path(tmp_path):
    fill(str(tmp_path / "grid.db"))
    return str(tmp_path / "grid.db")


def tamper(path, *statements):
    """Change the file behind everybody's back, and past its guards."""
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA ignore_check_constraints = ON")
        for statement in statements:
            connection.execute(statement)
        connection.commit()


# ---- check


def test_a_sound_store_is_clean(path, capsys):
    before = Path(path).read_bytes()
    assert grid_command("check", "--store", path) == 0
    out, err = capsys.readouterr()
    assert out == (
        f"sqlite:///{path}: 1 nodes, 4 live and 1 closed allocations, 0 open and 0 ended jobs,"
        " 0 open and 0 ended calls, 7 events\nclean\n"
    )
    assert err == ""
    assert Path(path).read_bytes() == before


def test_a_sound_store_is_clean_in_json_too(path, capsys):
    assert grid_command("check", "--store", f"sqlite:///{path}", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found.pop("cluster_id")) == 32
    assert found == {
        "clean": True, "url": f"sqlite:///{path}", "epoch": 1, "nodes": 1, "live": 4, "closed": 1,
        "jobs": {"open": 0, "ended": 0}, "calls": {"open": 0, "ended": 0}, "events": 7,
        "violations": [], "moved_to": None,
    }  # fmt: skip


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_jobs_are_counted(request, path, where, capsys):
    url = path
    if where == "postgresql":
        url = request.getfixturevalue("database")
        fill(url)
    add_jobs(url)
    assert grid_command("check", "--store", url) == 0
    shown = capsys.readouterr().out
    assert "5 live and 2 closed allocations, 2 open and 1 ended jobs, " in shown
    assert ", 16 events\nclean" in shown
    assert grid_command("check", "--store", url, "--json") == 0
    assert json.loads(capsys.readouterr().out)["jobs"] == {"open": 2, "ended": 1}


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_calls_are_counted_and_each_is_looked_at(request, path, where, capsys, monkeypatch):
    monkeypatch.setattr("gridhand.store.reader._CHUNK", 2)
    url = path if where == "sqlite" else request.getfixturevalue("database")
    store = store_at(url)
    store.open()
    over, still = ("succeeded", *[None] * 3, 1, 2, 3, None), ("queued", *[None] * 3, 1, *[None] * 3)
    for name in ("r1", "r2"):
        store.write_calls([CallRecord(name, n, "ann", "f", *over) for n in (1, 2, 3)])
    store.write_calls([CallRecord("r1", 4, "ann", "f", *still)])
    store.close()
    assert grid_command("check", "--store", url) == 0
    assert "1 open and 6 ended calls" in capsys.readouterr().out
    if where == "sqlite":
        tamper(path, "UPDATE calls SET ended = 0 WHERE run = 'r2' AND number = 3")
        assert grid_command("check", "--store", url) == 1
        assert "I7 call r2.3: its times are out of order" in capsys.readouterr().out


def test_a_store_in_postgresql_is_checked_the_same(database, capsys):
    fill(database)
    assert grid_command("check", "--store", database) == 0
    assert capsys.readouterr().out.endswith("7 events\nclean\n")
    sql(database, "UPDATE allocations SET amounts = '{\"cpu\":30000}' WHERE holder = 'kept'")
    assert grid_command("check", "--store", database, "--json") == 1
    assert json.loads(capsys.readouterr().out)["clean"] is False


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_its_owner_may_go_on_meanwhile(request, path, where, capsys):
    url = path
    if where == "postgresql":
        url = request.getfixturevalue("database")
        fill(url)
    with Grid.at(url) as grid:
        held = grid.allocate(cpu=1)
        assert grid_command("check", "--store", url) == 0
        grid.release(held)
        assert grid_command("check", "--store", url) == 0
        assert grid.check() == []
    assert "5 live and 1 closed" in capsys.readouterr().out


def test_it_is_checked_from_another_process_while_changes_come(path):
    with Grid.at(path) as grid:
        code = "import sys; from gridhand.cli.main import main; main()"
        command = [sys.executable, "-c", code, "check", "--store", path, "--json"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            while process.poll() is None:
                grid.allocate(cpu=1).release()
            found = json.loads(process.stdout.read())
    assert process.returncode == 0
    assert found["clean"] is True


LIVE = "live_node IS NOT NULL"
TAMPERED = {
    "more is held than there is": ["UPDATE allocations SET amounts = '{\"cpu\":990000}' WHERE holder = 'kept'"],
    "a little more is held than was granted": ["UPDATE allocations SET amounts = '{\"cpu\":20001}' WHERE holder = 'kept'"],
    "an allocation ended without an event": ["UPDATE allocations SET state = 'released', live_node = NULL WHERE holder = 'kept'"],
    "an allocation is gone": ["DELETE FROM allocations WHERE holder = 'kept'"],
    "an allocation nobody made": ["INSERT INTO allocations SELECT 99, epoch, owner, 'new', node, live_node, amounts, devices, state, lifetime, deadline, ttl, \"group\", asked, quality, made_at FROM allocations WHERE holder = 'kept'"],
    "one that ended lives again": ["UPDATE allocations SET state = 'active', live_node = node WHERE holder = 'gone'"],
    "a device is held twice": ["UPDATE allocations SET devices = replace(devices, '5000', '10000') WHERE holder = 'half'", "INSERT INTO allocations SELECT 99, epoch, owner, 'new', node, live_node, amounts, devices, state, lifetime, deadline, ttl, \"group\", asked, quality, made_at FROM allocations WHERE holder = 'half'"],
    "the owner was changed": ["UPDATE allocations SET owner = 'eve' WHERE holder = 'kept'"],
    "the node is smaller than it was": ["UPDATE nodes SET capacity = '{\"cpu\":10000}'"],
    "the node is gone": ["DELETE FROM nodes"],
    "an event is missing": ["DELETE FROM events WHERE number = 4"],
    "the last event is missing": ["DELETE FROM events WHERE number = (SELECT max(number) FROM events)"],
    "an event says something else": ["UPDATE events SET row = replace(row, '20000', '30000') WHERE number = 4"],
    "an event of another kind": ["UPDATE events SET kind = 'allocation.dreamt' WHERE number = 4"],
    "an event whose kind is not what its row says": ["UPDATE events SET kind = 'allocation.released' WHERE number = 4"],
    "an event twice": ["INSERT INTO events SELECT 99, at, kind, subject, owner, op_id, why, row FROM events WHERE number = 4"],
    "a negative amount": ["UPDATE allocations SET amounts = '{\"cpu\":-1}' WHERE holder = 'kept'"],
    "an amount that is no number": ["UPDATE allocations SET amounts = '{\"cpu\":\"two\"}' WHERE holder = 'kept'"],
    "amounts that are no JSON": ["UPDATE allocations SET amounts = '{oops' WHERE holder = 'kept'"],
    "an event that is no JSON": ["UPDATE events SET row = '{oops' WHERE number = 4"],
    "a state that there is not": ["UPDATE allocations SET state = 'dreaming' WHERE holder = 'kept'"],
    "a node whose health there is not": ["UPDATE nodes SET health = 'fine'"],
    "a live allocation on no node": ["UPDATE allocations SET node = 'x', live_node = 'x' WHERE holder = 'kept'"],
    "two of one holder": ["DROP INDEX one_live_allocation_per_holder", "UPDATE allocations SET holder = 'kept' WHERE holder = 'half'"],
    "a checkpoint from nowhere": ["INSERT INTO checkpoint SELECT 'allocation', 'a1-77', replace(replace(row, 'a1-2', 'a1-77'), '\"number\":2', '\"number\":77') FROM events WHERE number = 4"],
}  # fmt: skip


@pytest.mark.parametrize("statements", TAMPERED.values(), ids=TAMPERED)
def test_what_was_tampered_with_is_found(path, capsys, statements):
    """Whatever it is: a finding and the exit code 1, never a failure of the checker."""
    tamper(path, *statements)
    assert grid_command("check", "--store", path) == 1
    out, err = capsys.readouterr()
    assert "violation" in out.splitlines()[-1]
    assert "clean" not in out
    assert "Traceback" not in err
    assert grid_command("check", "--store", path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["clean"] is False
    assert all(one.keys() == {"invariant", "subject", "message"} for one in found["violations"])


JOB = "number = 1"
TAMPERED_JOBS = {
    "what a running job holds was released": ["UPDATE allocations SET state = 'released', live_node = NULL WHERE lifetime = 'job'"],
    "what a running job holds is on another node": ["INSERT INTO nodes SELECT 'b', capacity, '[]', labels, price, address, health, draining FROM nodes", "UPDATE allocations SET node = 'b', live_node = 'b' WHERE lifetime = 'job' AND live_node IS NOT NULL"],
    "what a running job holds is another's": ["UPDATE allocations SET owner = 'eve' WHERE lifetime = 'job'"],
    "a job is gone": [f"DELETE FROM jobs WHERE {JOB}"],
    "a job that ended is gone": ["DELETE FROM jobs WHERE number = 3"],
    "a job that ended runs again": ["UPDATE jobs SET state = 'running', open = 1, ended = NULL, reason = NULL WHERE number = 3"],
    "a job that ended has failed": ["UPDATE jobs SET state = 'failed' WHERE number = 3"],
    "a job ended without an event": ["UPDATE jobs SET state = 'cancelled', open = NULL, ended = 5, reason = 'cancelled' WHERE number = 2"],
    "a job nobody submitted": ["INSERT INTO jobs SELECT 99, '99', owner, name, state, open, array, array_index, submitted, ended, reason, not_before, work, request, after, attempts FROM jobs WHERE number = 2"],
    "a job is queued and open is not set": ["UPDATE jobs SET open = NULL WHERE number = 2"],
    "a job has ended and open is set": ["UPDATE jobs SET open = 1 WHERE number = 3"],
    "another command": ["UPDATE jobs SET work = replace(work, '\"true\"', '\"rm\"') WHERE number = 2"],
    "another owner": [f"UPDATE jobs SET owner = 'eve' WHERE {JOB}"],
    "another id": [f"UPDATE jobs SET id = '17' WHERE {JOB}"],
    "a state that there is not": [f"UPDATE jobs SET state = 'dreaming' WHERE {JOB}"],
    "a work that is no JSON": [f"UPDATE jobs SET work = '{{oops' WHERE {JOB}"],
    "attempts that are no JSON": ["UPDATE jobs SET attempts = '[oops' WHERE number = 3"],
    "no attempts": [f"UPDATE jobs SET attempts = '[]' WHERE {JOB}"],
    "another request": [f"UPDATE jobs SET request = '{{\"amounts\":{{\"cpu\":10000,\"memory\":1}}}}' WHERE {JOB}"],
    "a wait of nothing": ["UPDATE jobs SET not_before = 5 WHERE number = 2"],
    "the event of a submission is missing": ["DELETE FROM events WHERE kind = 'job.submitted' AND subject = '2'"],
    "the event of a start is missing": ["DELETE FROM events WHERE kind = 'job.started' AND subject = '1'"],
    "the event of an end is missing": ["DELETE FROM events WHERE kind = 'job.ended'"],
    "an event without the work": ["UPDATE events SET row = replace(row, '\"work\":', '\"play\":') WHERE kind = 'job.submitted' AND subject = '2'"],
    "an event with another work": ["UPDATE events SET row = replace(row, '\"true\"', '\"rm\"') WHERE kind = 'job.submitted' AND subject = '1'"],
    "an event of another kind": ["UPDATE events SET kind = 'job.dreamt' WHERE kind = 'job.started' AND subject = '1'"],
    "a checkpoint from nowhere": ["INSERT INTO checkpoint SELECT 'job', '77', replace(replace(row, '\"id\":\"2\"', '\"id\":\"77\"'), '\"number\":2', '\"number\":77') FROM events WHERE kind = 'job.submitted' AND subject = '2'"],
}  # fmt: skip


@pytest.mark.parametrize("statements", TAMPERED_JOBS.values(), ids=TAMPERED_JOBS)
def test_a_job_that_was_tampered_with_is_found(with_jobs, capsys, statements):
    tamper(with_jobs, *statements)
    assert grid_command("check", "--store", with_jobs) == 1
    out, err = capsys.readouterr()
    assert "violation" in out.splitlines()[-1]
    assert "Traceback" not in err


def test_a_damaged_file_is_found(path, capsys):
    with contextlib.closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'operations_by_age'"
        page = connection.execute(query).fetchone()[0]
    whole = bytearray(Path(path).read_bytes())
    whole[(page - 1) * 4096 : (page - 1) * 4096 + 4000] = b"\xff" * 4000
    Path(path).write_bytes(whole)
    assert grid_command("check", "--store", path) == 1
    assert "I7" in capsys.readouterr().out


ERRORS = {
    "nothing is there": ("{folder}/none.db", "there is no store"),
    "another program's database": ("{folder}/other.db", "is not a Gridhand store"),
    "no database at all": ("{folder}/text.db", ""),
    "an empty file": ("{folder}/empty.db", "is not a Gridhand store"),
    "an address of something else": ("mysql://host/db", "store"),
    "nobody listens": ("postgresql://u@/db?host={folder}", ""),
    "no such database": ("{postgres}", "does not exist"),
    "a database without a store": ("{database}", "is not a Gridhand store"),
}


@pytest.mark.parametrize(("url", "says"), ERRORS.values(), ids=ERRORS)
@pytest.mark.parametrize("more", [[], ["--json"]])
def test_what_cannot_be_checked_ends_with_125(tmp_path, postgres, database, capsys, url, says, more):  # fmt: skip
    (tmp_path / "text.db").write_text("dear diary, " * 500)
    (tmp_path / "empty.db").touch()
    with contextlib.closing(sqlite3.connect(tmp_path / "other.db")) as connection:
        connection.execute("CREATE TABLE books (title)")
    url = url.format(folder=tmp_path, postgres=postgres.url("nowhere"), database=database)
    before = sorted(found.name for found in tmp_path.iterdir())
    assert grid_command("check", "--store", url, *more) == 125
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert "hint: " in err
    assert says in err
    assert "Traceback" not in err
    assert sorted(found.name for found in tmp_path.iterdir()) == before  # nothing was made


def test_the_store_must_be_named(capsys):
    assert grid_command("check") == 125
    assert "--store" in capsys.readouterr().err


# ---- migrate-store


def test_a_store_is_moved_there_and_back(path, database, tmp_path, capsys):
    back = str(tmp_path / "back.db")
    assert grid_command("migrate-store", path, database) == 0
    out, err = capsys.readouterr()
    assert out.startswith("moved 14 rows from sqlite:///")
    assert err == ""
    assert grid_command("migrate-store", database, back, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["to"]) == (14, f"sqlite:///{back}")
    assert found["from"].startswith("postgresql://")
    assert grid_command("check", "--store", back) == 0
    capsys.readouterr()
    with Grid.at(back, owner="ann") as grid:
        assert len(grid.allocations()) == 4
        assert grid.allocate(cpu=2, holder="kept", op_id="kept").state == "active"
    for old in (path, database):
        assert grid_command("migrate-store", old, str(tmp_path / "again.db")) == 125
        shown = capsys.readouterr().err
        assert "was moved to" in shown
        assert "hint: Open the store it was moved to." in shown


def test_a_move_that_is_refused_says_why(path, database, tmp_path, capsys):
    fill(database)
    cases = {
        "not empty": (path, database),
        "there is no store": (str(tmp_path / "none.db"), str(tmp_path / "new.db")),
        "--help": (path,),
    }
    for says, arguments in cases.items():
        assert grid_command("migrate-store", *arguments) == 125
        out, err = capsys.readouterr()
        assert (out, says in err) == ("", True)
    with Grid.at(path):
        assert grid_command("migrate-store", path, str(tmp_path / "new.db")) == 125
    assert "is owned by process" in capsys.readouterr().err
    assert grid_command("check", "--store", path) == 0
    assert not (tmp_path / "none.db").exists()


def test_a_store_that_was_moved_is_not_clean(path, tmp_path, capsys):
    target = str(tmp_path / "new.db")
    assert grid_command("migrate-store", path, target) == 0
    capsys.readouterr()
    assert grid_command("check", "--store", path) == 1
    assert f"moved to sqlite:///{target}" in capsys.readouterr().out
    assert grid_command("check", "--store", path, "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert (found["clean"], found["moved_to"]) == (False, f"sqlite:///{target}")
    assert grid_command("check", "--store", target) == 0


def test_a_store_is_not_moved_onto_itself(path, capsys):
    assert grid_command("migrate-store", path, f"sqlite:///{path}") == 125
    assert "both FROM and TO" in capsys.readouterr().err
    assert grid_command("check", "--store", path) == 0


def test_of_many_findings_the_first_are_shown_and_the_rest_counted(path, capsys):
    again = "INSERT INTO events SELECT number + {}, 0, kind, subject, owner, op_id, why, row FROM events"
    tamper(path, *(again.format(1000 * 2**step) for step in range(4)))
    assert grid_command("check", "--store", path) == 1
    out = capsys.readouterr().out
    assert "more; --json lists them all" in out
    assert len(out.splitlines()) < 30


def test_output_that_cannot_be_written_is_no_bug_of_ours(path):
    code = "from gridhand.cli.main import main; main()"
    command = [sys.executable, "-c", code, "check", "--store", path]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert "Traceback" not in done.stderr
    assert done.returncode == 125
