"""Rights that are given up: for good in a child, and for the files of one thread."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from gridhand.posix.privileges import become_user
from gridhand.posix.unix_users import UnixUser
from other_user import OTHER, needs_root

USER = UnixUser(OTHER, OTHER + 1, (OTHER + 1, OTHER + 2))

pytestmark = needs_root

_BECOME = """
import json, os, sys
from gridhand.posix.privileges import become_user
from gridhand.posix.unix_users import UnixUser
become_user(UnixUser(*json.loads(sys.argv[1])))
status = dict(line.split(":", 1) for line in open("/proc/self/status") if line.startswith("Cap"))
back = []
for way in (lambda: os.setuid(0), lambda: os.seteuid(0), lambda: os.setgid(0), lambda: os.setgroups([0])):
    try:
        way()
        back.append(True)
    except PermissionError:
        back.append(False)
print(json.dumps([os.getresuid(), os.getresgid(), os.getgroups(), status, back]))
"""


def become(user):
    words = [sys.executable, "-c", _BECOME, json.dumps(user)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_a_process_that_becomes_a_user_has_no_way_back():
    uids, gids, groups, capabilities, back = become(USER)
    assert uids == [USER.uid] * 3
    assert gids == [USER.gid] * 3
    assert sorted(groups) == sorted(USER.groups)
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb"):
        assert int(capabilities[name], 16) == 0
    assert back == [False] * 4


def test_capabilities_that_children_would_inherit_are_dropped_too():
    words = [sys.executable, "-c", _BECOME, json.dumps(USER)]
    inherits = ["setpriv", "--inh-caps", "+dac_override", "--ambient-caps", "+dac_override"]
    done = subprocess.run([*inherits, *words], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"capabilities cannot be inherited here: {done.stderr}")
    capabilities = json.loads(done.stdout)[3]
    assert {int(value, 16) for name, value in capabilities.items() if name != "CapBnd"} == {0}


def test_ids_that_did_not_change_are_noticed(monkeypatch):
    for name in ("setgroups", "setresgid", "setresuid"):
        monkeypatch.setattr(os, name, lambda *ids: None)
    monkeypatch.setattr("gridhand.posix.privileges._drop_capabilities", lambda: None)
    with pytest.raises(PermissionError):
        become_user(USER)


_FILES = """
import os, sys, threading
from gridhand.posix.privileges import drop_groups, file_rights_of
from gridhand.posix.unix_users import UnixUser
folder, uid = sys.argv[1], int(sys.argv[2])
user = UnixUser(uid, uid + 1, ())

def readable(name):
    try:
        open(os.path.join(folder, name)).close()
        return True
    except PermissionError:
        return False

try:
    with file_rights_of(user):
        pass
except PermissionError:
    print("refused with groups")
drop_groups()
inside, outside = threading.Event(), threading.Event()
seen = {}

def other():
    inside.wait()
    seen["other thread"] = readable("root")
    outside.set()

thread = threading.Thread(target=other)
thread.start()
with file_rights_of(user):
    inside.set()
    outside.wait()
    print({name: readable(name) for name in sorted(os.listdir(folder)) if name != 'shared'})
    open(os.path.join(folder, "shared", "new"), "w").close()
thread.join()
print(seen, readable("root"), os.stat(os.path.join(folder, "shared", "new")).st_uid == uid)
try:
    with file_rights_of(user):
        raise KeyError
except KeyError:
    print(readable("root"))
"""


@pytest.fixture
def folder():
    """A folder that other users can enter, unlike those of pytest."""
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


def test_files_are_opened_with_the_rights_of_the_user_in_that_thread_only(folder):
    folder.chmod(0o755)
    (folder / "shared").mkdir()
    (folder / "shared").chmod(0o777)
    for name, (uid, gid, mode) in {
        "root": (0, 0, 0o600),
        "root-group": (0, 0, 0o640),
        "user": (OTHER, 0, 0o600),
        "user-group": (0, OTHER + 1, 0o640),
        "all": (0, 0, 0o644),
    }.items():
        (folder / name).write_text("")
        os.chown(folder / name, uid, gid)
        (folder / name).chmod(mode)
    words = [sys.executable, "-c", _FILES, str(folder), str(OTHER)]
    before = subprocess.run(words, capture_output=True, text=True, extra_groups=[0])
    lines = before.stdout.splitlines()
    assert lines == [
        "refused with groups",
        "{'all': True, 'root': False, 'root-group': False, 'user': True, 'user-group': True}",
        "{'other thread': True} True True",
        "True",
    ], before
