"""JobUsers: as which unix user the jobs of an owner run, and who may manage those of others."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from gridhand.posix.unix_users import UnixUser, find_user, is_in_group

_FRESH_S = 10.0  # for which the members of the administrators' group are not looked up again


class JobUsers:
    """The users of one controller: its own, or all of the machine if it is `shared`."""

    def __init__(
        self, *, shared: bool = False, admin_group: Callable[[], str | None] = lambda: None
    ) -> None:
        """`admin_group` returns the group whose members are administrators, if there is one."""
        self.shared = shared
        self._admin_group = admin_group
        self._admins: dict[tuple[int, str], tuple[float, bool]] = {}

    def find(self, owner: str) -> UnixUser | None:
        """Return the user as whom the jobs of an owner run; None for that of the controller.

        Raise UnknownUser if the machine has no such user.
        """
        return find_user(owner) if self.shared else None

    def is_admin(self, uid: int) -> bool:
        """Return whether a user may see and end everything: root, the controller's own, a group."""
        if uid in (0, os.geteuid()):
            return True
        group = self._admin_group() if self.shared else None
        return group is not None and self._is_member(uid, group)

    def may_act_for_others(self, uid: int) -> bool:
        """Return whether a user may submit in the names of others.

        Only root: a job runs with the rights of its owner, which an administrator need not have.
        """
        return uid in (0, os.geteuid())

    def _is_member(self, uid: int, group: str) -> bool:
        now = time.monotonic()
        looked, member = self._admins.get((uid, group), (now - _FRESH_S, False))
        if now - looked >= _FRESH_S:
            member = is_in_group(uid, group)
            self._admins[uid, group] = now, member
        return member
