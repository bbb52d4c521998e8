"""Home: the folder where a controller of one user keeps what it knows, and where it is found.

Whoever may open the socket acts as the user, so the folder is closed to everybody else, and one
that is not is refused instead of being mended: what others could change is not to be trusted.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridhand.core.errors import GridError

MACHINE_SOCKET = "/run/gridhand/socket"  # of a controller that serves all users of the machine
LONGEST_SOCKET = 100  # bytes of a path; the system takes 107


class Home:
    """Paths of one controller. Making the object touches nothing on the disk."""

    __slots__ = ("folder",)

    def __init__(self, folder: str) -> None:
        self.folder = os.path.abspath(folder)

    @classmethod
    def find(cls, *, make: bool = True) -> Home:
        """The home that the environment says; made and checked, unless told not to."""
        home = cls(_from_environment())
        if make:
            home.make()
        return home

    def make(self) -> None:
        """Make the folder and that of the socket; raise `GridError` if they cannot be trusted."""
        _make_private(self.folder)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise _unusable(f"{self.folder} cannot be written", f"Try `chmod 700 {self.folder}`.")
        if self._is_long():
            self._leave_word()
            _make_private(os.path.dirname(self.socket))

    @property
    def socket(self) -> str:
        """Where the controller listens.

        A path may be too long for the system. The socket is elsewhere then, and a link tells
        where: which folder is for such things depends on the environment, and those who look for
        the socket may have another one than the one who made it.
        """
        if not self._is_long():
            return self._own_socket
        try:
            return os.readlink(self._own_socket)
        except OSError:
            return self._short()

    @property
    def store(self) -> str:
        return self._in("grid.db")

    @property
    def owner(self) -> str:
        """The file with the pid of the process that has the store."""
        return f"{self.store}.owner"

    @property
    def lock(self) -> str:
        """Held while a controller is being started, so that two at once start one."""
        return self._in("start.lock")

    @property
    def log(self) -> str:
        return self._in("controller.log")

    @property
    def agent(self) -> str:
        return self._in("agent")

    @property
    def starter(self) -> str:
        return self._in("starter")

    @property
    def nodes(self) -> str:
        """The file that says which nodes this machine stands for, if it is not just itself."""
        return self._in("nodes.json")

    @property
    def jobs(self) -> str:
        return self._in("jobs")

    @property
    def environments(self) -> str:
        return self._in("environments")

    def job(self, id: str) -> str:
        """The folder of a job. An id that is not one, and might lead elsewhere, is refused."""
        number, mark, index = id.partition("_")
        if not _is_number(number) or (mark and not _is_number(index)):
            from gridhand.core.errors import InvalidInput

            raise InvalidInput("job", id, "the id of a job, such as 17 or 17_3")
        return os.path.join(self.jobs, id)

    def __repr__(self) -> str:
        return f"Home({self.folder!r})"

    @property
    def _own_socket(self) -> str:
        return self._in("socket")

    def _in(self, name: str) -> str:
        return os.path.join(self.folder, name)

    def _is_long(self) -> bool:
        return len(os.fsencode(self._own_socket)) > LONGEST_SOCKET

    def _short(self) -> str:
        """Where the socket goes when its own path is too long."""
        from hashlib import sha256

        name = f"{sha256(os.fsencode(self.folder)).hexdigest()[:32]}.sock"
        given = os.environ.get("XDG_RUNTIME_DIR", "")
        inside = os.path.join(given, "gridhand")
        if os.path.isdir(given) and len(os.fsencode(f"{inside}/{name}")) <= LONGEST_SOCKET:
            return os.path.join(inside, name)
        return os.path.join(f"/tmp/gridhand-{os.geteuid()}", name)

    def _leave_word(self) -> None:
        """Link to the socket, unless there is a link to a folder that is still there."""
        try:
            if os.path.isdir(os.path.dirname(os.readlink(self._own_socket))):
                return
            os.unlink(self._own_socket)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unusable(f"{self._own_socket} is in the way: {error.strerror}") from error
        with contextlib.suppress(FileExistsError):  # another one was quicker; as good
            os.symlink(self._short(), self._own_socket)


def _from_environment() -> str:
    if given := os.environ.get("GRIDHAND_HOME"):
        return given
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # by its own rules one that is not does not count
        state = os.path.expanduser("~/.local/state")
    return os.path.join(state, "gridhand")


def _make_private(folder: str) -> None:
    """A folder that is ours and closed to others, made if it is not there."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        found = os.stat(folder)
    except FileExistsError as error:
        raise _unusable(f"{folder} is not a folder") from error
    except OSError as error:
        raise _unusable(f"cannot make {folder}: {error.strerror}") from error
    if found.st_uid != os.geteuid():
        raise _unusable(f"{folder} belongs to another user (uid {found.st_uid})")
    if stat.S_IMODE(found.st_mode) & 0o077:
        hint = f"Close it with `chmod 700 {folder}`."
        raise _unusable(f"{folder} is open to other users (mode {found.st_mode & 0o777:03o})", hint)


def _unusable(what: str, hint: str = "") -> GridError:
    from gridhand.core.errors import GridError

    return GridError(what, hint=hint or "Set GRIDHAND_HOME to a folder of your own.")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
