"""Owners and uids: both ways agree, whatever names a machine has given its users."""

import grp
import os
import pwd

import pytest

from gridhand.posix import unix_users
from gridhand.posix.unix_users import UnixUser, UnknownUser, find_user, is_in_group, user_name

#   name, uid, gid: the first entry of a uid counts
USERS = [
    ("root", 0, 0),
    ("toor", 0, 0),  # a second name of root
    ("ann", 1000, 1000),
    ("uid-0", 1001, 1001),  # would like to be root
    ("uid-1003", 1002, 1002),  # would like to be the user without a name
    ("DOMAIN\\bob", 1004, 1004),
    ("$(reboot)", 1005, 1005),
    ("*", 1006, 1006),
]
GROUPS = {"admins": (50, ["ann"]), "root": (0, []), "ann": (1000, [])}


@pytest.fixture(autouse=True)
def machine(monkeypatch):
    """A machine with these users."""
    entries = [pwd.struct_passwd((n, "x", u, g, "", "/", "/bin/sh")) for n, u, g in USERS]
    groups = [grp.struct_group((n, "x", g, m)) for n, (g, m) in GROUPS.items()]

    def find(entries, field, value):
        for entry in entries:
            if getattr(entry, field) == value:
                return entry
        raise KeyError(value)

    def groups_of(name, gid):
        return [gid, *(group.gr_gid for group in groups if name in group.gr_mem)]

    monkeypatch.setattr(pwd, "getpwuid", lambda uid: find(entries, "pw_uid", uid))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: find(entries, "pw_name", name))
    monkeypatch.setattr(grp, "getgrnam", lambda name: find(groups, "gr_name", name))
    monkeypatch.setattr(os, "getgrouplist", groups_of)


@pytest.mark.parametrize(
    ("uid", "owner"),
    {0: "root", 1000: "ann", 1001: "uid-1001", 1002: "uid-1002", 1003: "uid-1003", 1004: "uid-1004",
     1005: "uid-1005", 1006: "uid-1006"}.items(),
)  # fmt: skip
def test_every_uid_has_an_owner_that_leads_back_to_it(uid, owner):
    assert user_name(uid) == owner
    assert find_user(owner).uid == uid


def test_no_two_uids_have_the_same_owner():
    uids = range(2000)
    assert len({user_name(uid) for uid in uids}) == len(uids)


@pytest.mark.parametrize(
    "owner",
    [
        "toor",
        "uid-0",
        "uid-1000",
        "uid-01003",
        "uid-",
        "nobody-there",
        "DOMAIN\\bob",
        "*",
        "",
        "a\0b",
    ],
)
def test_an_owner_that_is_not_the_name_of_its_uid_is_refused(owner):
    with pytest.raises(UnknownUser):
        find_user(owner)


def test_a_user_has_the_groups_of_the_machine_and_one_without_an_entry_has_none():
    assert find_user("ann") == UnixUser(1000, 1000, (1000, 50))
    assert find_user("uid-1003") == UnixUser(1003, unix_users._NO_GROUP, ())


def test_members_of_a_group():
    assert is_in_group(1000, "admins")
    assert is_in_group(1000, "ann")
    assert not is_in_group(1001, "admins")
    assert not is_in_group(1000, "no-such-group")
    assert not is_in_group(4711, "admins")
