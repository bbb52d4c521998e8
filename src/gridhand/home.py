"""The home folder of a user's controller: its store, its socket and everything else it keeps.

A process that can open the socket acts as the user, so the folder must be closed to others. One
that is open is refused, not repaired: others may already have changed what is in it.
"""

from __future__ import annotations

import contextlib
import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gridhand.core.errors import GridError

OWN_FOLDER = "Set GRIDHAND_HOME to a folder of your own."
MACHINE_SOCKET = "/run/gridhand/socket"  # of a controller for all users of the machine
MACHINE_HOME = "/var/lib/gridhand"
_MACHINE_MARK = "machine-wide"  # a file in the home of such a controller
LONGEST_SOCKET = 100  # bytes of a path; the system allows 107
_SHARED = "/tmp"
_OUR_FILES = frozenset({"grid.db", "controller.log", "start.lock"})


CONFIG_FILE = "cluster_config.yaml"


def find_config_file() -> str | None:
    """Return the configuration file of a caller: from the environment, or in its folder.

    The file in the home, which comes last, is left to the controller.
    """
    given = os.environ.get("GRIDHAND_CONFIG")
    if given:
        return os.path.abspath(given)
    return os.path.abspath(CONFIG_FILE) if os.path.isfile(CONFIG_FILE) else None


def machine_socket() -> str:
    """Return where a controller for all users listens; the variable is for tests of it."""
    return os.environ.get("GRIDHAND_MACHINE_SOCKET") or MACHINE_SOCKET


class Home:
    """The paths of one controller. Making the object does not touch the disk.

    A home with a `public_socket` is that of a machine-wide controller, to which every user may
    connect. Everything else in it is closed to all but root.
    """

    __slots__ = ("folder", "public_socket")

    def __init__(self, folder: str, public_socket: str | None = None) -> None:
        self.folder = os.path.abspath(folder)
        self.public_socket = public_socket

    @classmethod
    def machine_wide(cls) -> Home:
        """Return the home of the controller for all users of this machine; create and check it."""
        home = cls(os.environ.get("GRIDHAND_HOME") or MACHINE_HOME, machine_socket())
        home.make()
        return home

    @classmethod
    def find(cls, *, make: bool = True) -> Home:
        """Return the home that the environment names; create and check it if `make`."""
        home = cls(_from_environment())
        if make:
            home.make()
        return home

    def make(self) -> None:
        """Create the folder and that of the socket; raise `GridError` if they are not private."""
        _make_private(self.folder)
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise _unusable(f"{self.folder} cannot be written", open_hint(self.folder))
        self._check_kind()
        if self.public_socket is not None:
            _make_public(os.path.dirname(self.public_socket))
        elif self._is_long():
            self._link_socket()

    def _check_kind(self) -> None:
        """Raise `GridError` if the home is of the other kind; mark that of a machine's controller.

        A controller of root's own would run the queued jobs of all users as root.
        """
        mark = self._in(_MACHINE_MARK)
        if self.public_socket is None:
            if os.path.exists(mark):
                what = f"{self.folder} belongs to the controller for all users of this machine"
                raise _unusable(what, "Start that with `grid serve --system`.")
        elif not os.path.exists(mark):
            if any(os.path.exists(self._in(name)) for name in _OUR_FILES):
                raise _unusable(f"{self.folder} belongs to a controller of one user")
            os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))

    def exists(self) -> bool:
        return os.path.isdir(self.folder)

    @property
    def socket(self) -> str:
        """The path where the controller listens.

        If its path in the home is too long for the system, the socket is elsewhere and the path is
        a link to it: the other place depends on the environment, which may differ between the
        process that made the socket and those that look for it.
        """
        if self.public_socket is not None:
            return self.public_socket
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
    def store_note(self) -> str:
        """The file with the address of the store, if that is not the home's own."""
        return self._in("store.json")

    @property
    def machine(self) -> str:
        """The file with the name of this machine among those that share a store."""
        return self._in("machine")

    @property
    def owner(self) -> str:
        """The file with the pid of the process that owns the store."""
        return f"{self.store}.owner"

    @property
    def lock(self) -> str:
        """The lock that is held while a controller is started, so that only one is."""
        return self._in("start.lock")

    @property
    def controller_lock(self) -> str:
        """The lock that a controller holds as long as it serves, signed with its pid."""
        return self._in("controller.lock")

    def config_file(self) -> str | None:
        """Return the path of the configuration file in the home, if there is one."""
        path = self._in(CONFIG_FILE)
        return path if os.path.isfile(path) else None

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
        """The file with the virtual nodes of this machine, if there are any."""
        return self._in("nodes.json")

    @property
    def listened(self) -> str:
        """The file with the address of a controller that `grid serve --port` has started."""
        return self._in("listened")

    @property
    def declared(self) -> str:
        """The file with what was declared about the nodes that report to the controller."""
        return self._in("declared.json")

    @property
    def jobs(self) -> str:
        return self._in("jobs")

    @property
    def uploads(self) -> str:
        """The folders of jobs that were submitted over the network."""
        return self._in("uploads")

    @property
    def environments(self) -> str:
        return self._in("environments")

    def job(self, id: str) -> str:
        """Return the folder of a job; raise InvalidInput for an id that might lead elsewhere."""
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
        """Return the path of the socket when its own is too long."""
        name = self._short_name()
        for runtime in (os.environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{os.geteuid()}"):
            path = os.path.join(runtime, "gridhand", name)
            if _is_ours(runtime) and len(os.fsencode(path)) <= LONGEST_SOCKET:
                return path
        return os.path.join(f"{_SHARED}/gridhand-{os.geteuid()}", name)

    def _short_name(self) -> str:
        from hashlib import sha256

        return f"{sha256(os.fsencode(self.folder)).hexdigest()[:32]}.sock"

    def _link_socket(self) -> None:
        """Link to the socket, in a folder that is ours; keep a link to such a folder."""
        try:
            if _check_private(os.path.dirname(os.readlink(self._own_socket))):
                return
            os.unlink(self._own_socket)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise _unusable(f"{self._own_socket} is in the way: {error.strerror}") from error
        path = self._short()
        if not _check_private(os.path.dirname(path), make=True):  # another user took that name
            from tempfile import mkdtemp

            folder = mkdtemp(prefix=f"gridhand-{os.geteuid()}-", dir=_SHARED)
            path = os.path.join(folder, self._short_name())
        with contextlib.suppress(FileExistsError):  # another process was faster
            os.symlink(path, self._own_socket)


def _from_environment() -> str:
    if given := os.environ.get("GRIDHAND_HOME"):
        return given
    state = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(state):  # the XDG specification ignores relative paths
        state = os.path.expanduser("~/.local/state")
    return os.path.join(state, "gridhand")


def _make_public(folder: str) -> None:
    """Create a folder that all may enter if needed; raise `GridError` if others can change it."""
    from gridhand.posix.shared_parents import UnsafeFolder, open_own_folder

    try:
        os.makedirs(os.path.dirname(folder), mode=0o755, exist_ok=True)
        os.close(open_own_folder(folder, 0o755))
    except (OSError, UnsafeFolder) as error:
        raise _unusable(f"no socket for all users can be made: {error}") from error


def _make_private(folder: str) -> None:
    """Create the folder if needed; raise `GridError` unless it is ours and closed to others."""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        link, found = os.lstat(folder), os.stat(folder)
    except FileExistsError as error:
        raise _unusable(f"{folder} is not a folder") from error
    except OSError as error:
        raise _unusable(f"cannot make {folder}: {error.strerror}") from error
    if stat.S_ISLNK(link.st_mode) and link.st_uid not in (0, os.geteuid()):
        raise _unusable(f"{folder} is a link of another user (uid {link.st_uid})")
    if found.st_uid != os.geteuid():
        raise _unusable(f"{folder} belongs to another user (uid {found.st_uid})")
    if stat.S_IMODE(found.st_mode) & 0o077:
        what = f"{folder} is open to other users (mode {found.st_mode & 0o777:03o})"
        raise _unusable(what, close_hint(folder))


def close_hint(folder: str) -> str:
    """Return how to make a folder private; "" if others may need it: it is not only ours."""
    try:
        names = os.listdir(folder)
    except OSError:
        return ""
    ours = not names or any(name in _OUR_FILES for name in names)
    return f"Close it with `chmod 700 {folder}`." if ours else ""


def open_hint(folder: str) -> str:
    """Return how to make a folder writable; "" if its mode is not what prevents it."""
    is_open = os.stat(folder).st_mode & 0o700 == 0o700  # so the disk is read-only
    return "" if is_open else close_hint(folder)


def _check_private(folder: str, *, make: bool = False) -> bool:
    """Return whether the folder exists and is ours; raise `GridError` if others can enter it.

    With `make`, create it if there is none.
    """
    from gridhand.posix.shared_parents import OpenFolder, UnsafeFolder, open_own_folder

    if not make and not os.path.lexists(folder):
        return False
    try:
        os.close(open_own_folder(folder))
    except OpenFolder as error:
        raise _unusable(str(error), f"Close it with `chmod 700 {folder}`.") from error
    except UnsafeFolder:
        return False
    except OSError as error:
        raise _unusable(f"cannot use {folder}: {error.strerror}") from error
    return True


def _is_ours(folder: str) -> bool:
    """Return whether a runtime folder exists, is ours, and cannot be changed by others."""
    try:
        found = os.stat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022
    )


def _unusable(what: str, hint: str = "") -> GridError:
    from gridhand.core.errors import GridError

    return GridError(what, hint=hint or OWN_FOLDER)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal()
