"""Real unix users, and a machine-wide controller that serves them, for tests that run as root."""

import contextlib
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import gridhand
from until import until

NEEDS_ROOT = "makes users and a controller for all of them, as only root can"
_PREFIX = "ghtest"  # and the pid of the test process
_LEFT = re.compile(rf"{_PREFIX}(\d+)[a-z]")

# Runs code that it reads from its input, and writes what `answer` is then, or how it failed.
_LOOP = """
import json, sys
for line in sys.stdin:
    try:
        answer = None
        exec(json.loads(line), globals())
        said = {"answer": answer}
    except BaseException as error:
        said = {"error": getattr(error, "code", None) or type(error).__name__, "text": str(error)}
    print(json.dumps(said), flush=True)
"""


class Refused(Exception):
    """The code of a user failed; `code` is that of our error, or the name of its class."""

    def __init__(self, code, text):
        super().__init__(f"{code}: {text}")
        self.code = code


class MachineUser:
    """A unix user, the folder of the user, and a Python process that runs as the user."""

    def __init__(self, name, folder, env, python):
        entry = pwd.getpwnam(name)
        self.name, self.uid, self.gid = name, entry.pw_uid, entry.pw_gid
        self.folder = Path(folder)
        self.folder.mkdir(mode=0o700)
        os.chown(self.folder, self.uid, self.gid)
        self.env = {**env, "HOME": str(self.folder), "USER": name}
        self._python = python
        self._shell = None

    def start(self, words, **more):
        """Start a program as the user."""
        groups = os.getgrouplist(self.name, self.gid)
        return subprocess.Popen(
            words,
            user=self.uid,
            group=self.gid,
            extra_groups=groups,
            umask=0o022,
            cwd=self.folder,
            env=self.env,
            text=True,
            **more,
        )

    def start_grid(self, *words, **more):
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return self.start([self._python, "-m", "gridhand.cli.main", *map(str, words)], **pipes)

    def grid(self, *words):
        """Run a command of `grid` to its end; return its exit code, output and errors."""
        with self.start_grid(*words) as process:
            out, err = process.communicate(timeout=100)
        return process.returncode, out, err

    def run(self, *words):
        """Do the same for a command that has to succeed; return its output."""
        code, out, err = self.grid(*words)
        assert code == 0, (code, out, err)
        return out

    def python(self, code):
        """Run code in the user's Python; return its `answer`, or raise Refused."""
        if self._shell is None:
            pipe = subprocess.PIPE
            self._shell = self.start([self._python, "-c", _LOOP], stdin=pipe, stdout=pipe)
        self._shell.stdin.write(json.dumps(code) + "\n")
        self._shell.stdin.flush()
        said = json.loads(self._shell.stdout.readline())
        if "error" in said:
            raise Refused(said["error"], said["text"])
        return said["answer"]

    def close(self):
        if self._shell is not None:
            with self._shell:
                self._shell.stdin.close()


class Machine:
    """A machine-wide controller in folders of the test, and its users."""

    def __init__(self, folder, python, user_env, root_env):
        self.folder, self.env = folder, root_env
        self.users = []
        self._python, self._user_env = python, user_env
        self.home = Path(root_env["GRIDHAND_HOME"])
        self.log = open(folder / "log", "ab")  # noqa: SIM115 - until `close`
        self.process = None

    def add_user(self, name):
        user = MachineUser(name, self.folder / name, self._user_env, self._python)
        self.users.append(user)
        return user

    def serve(self, *words):
        """Start the controller, and return when it answers."""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gridhand.cli.main", "serve", "--system", *words],
            env=self.env,
            stdout=self.log,
            stderr=self.log,
            cwd="/",
        )
        until(lambda: self.process.poll() is not None or self._answers())
        assert self.process.poll() is None, (self.folder / "log").read_text()

    def _answers(self):
        with socket.socket(socket.AF_UNIX) as connected, contextlib.suppress(OSError):
            connected.connect(self.env["GRIDHAND_MACHINE_SOCKET"])
            return True
        return False

    def grid(self, *words):
        """Run a command of `grid` as root; return its output."""
        command = [sys.executable, "-m", "gridhand.cli.main", *map(str, words)]
        done = subprocess.run(command, env=self.env, cwd="/", capture_output=True, text=True)
        assert done.returncode == 0, done
        return done.stdout

    def end(self, signum=signal.SIGTERM):
        """End the controller; the jobs go on."""
        self.process.send_signal(signum)
        self.process.wait(60)

    def close(self):
        for user in self.users:
            user.close()
        if self.process is not None and self.process.poll() is None:
            self.grid("stop", "--kill-jobs")
            self.process.wait(60)
            assert not self._answers()
            assert not os.path.exists(self.env["GRIDHAND_MACHINE_SOCKET"])
        self.log.close()


@contextlib.contextmanager
def machine(letters="ab", config=""):
    """Make users and the folders of a controller, which is to be started with `serve`.

    In the configuration, {0} stands for the first user.
    """
    if os.geteuid() != 0:
        pytest.skip(NEEDS_ROOT)
    if shutil.which("useradd") is None:
        pytest.skip("there is no useradd to make users with")
    folder = Path(tempfile.mkdtemp(prefix="gh-users-"))
    folder.chmod(0o755)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        names = [stack.enter_context(made_user(letter)) for letter in letters]
        env = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "GRIDHAND_MACHINE_SOCKET": str(folder / "run" / "socket"),
        }
        python, path = _shared_python(names[0], folder / "lib")
        root_env = {**os.environ, **env, "GRIDHAND_HOME": str(folder / "home")}
        root_env.pop("GRIDHAND_ADDRESS", None)
        if config:
            (folder / "config.yaml").write_text(config.format(*names))
            root_env["GRIDHAND_CONFIG"] = str(folder / "config.yaml")
        made = Machine(folder, python, {**env, "PYTHONPATH": path}, root_env)
        for name in names:
            made.add_user(name)
        stack.callback(made.close)
        yield made


@contextlib.contextmanager
def made_user(letter):
    """A user of a name that no other process makes; what killed ones left is removed."""
    for entry in pwd.getpwall():
        left = _LEFT.fullmatch(entry.pw_name)
        if left and not os.path.exists(f"/proc/{left[1]}"):
            subprocess.run(["userdel", "--force", entry.pw_name], capture_output=True)
    name = f"{_PREFIX}{os.getpid()}{letter}"
    words = ["useradd", "--no-create-home", "--user-group", "--shell", "/bin/sh", name]
    # Another process may have locked the file of users.
    until(lambda: subprocess.run(words, capture_output=True).returncode in (0, 9), 30, 0.2)
    try:
        yield name
    finally:
        remove = ["userdel", "--force", name]  # even if processes are left
        until(lambda: subprocess.run(remove, capture_output=True).returncode in (0, 6), 30, 0.2)


def _shared_python(name, folder):
    """Return a Python that other users can run, and the path on which it finds our modules.

    These are copied: the folder that they are in may be closed to others.
    """
    entry = pwd.getpwnam(name)
    shutil.copytree(Path(gridhand.__file__).parent, folder / "gridhand", ignore=_compiled)
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    path = ":".join([str(folder), *(one for one in sys.path if one.endswith("site-packages"))])
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    for python in (sys.executable, shutil.which(version, path="/usr/local/bin:/usr/bin")):
        if python is None:
            continue
        with contextlib.suppress(OSError):
            done = subprocess.run(
                [python, "-c", "import gridhand.cli.main, gridhand.client"],
                user=entry.pw_uid,
                group=entry.pw_gid,
                extra_groups=[],
                env={"PYTHONPATH": path},
                cwd="/",
                capture_output=True,
            )
            if done.returncode == 0:
                return python, path
    pytest.skip("other users can run no Python that has our modules")


_compiled = shutil.ignore_patterns("__pycache__")
