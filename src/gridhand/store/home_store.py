"""The store of a home: the ledger that the home belongs to, and its address.

A home whose state is not in its own file, `grid.db`, has a note with the address, so that every
later controller uses the same store. The address may contain a password: the note is for its owner
only. The id of the ledger tells it from another one at the same address, and finds it again at a
new address after it was moved.
"""

from __future__ import annotations

import json
import os
from typing import NamedTuple

from sqlalchemy import select

from gridhand.core.errors import StoreInvalid
from gridhand.home import Home
from gridhand.posix.private_files import replace_file, sync_folder
from gridhand.store.urls import store_at


class HomeStore(NamedTuple):
    """The address of a home's store, and the ledger that is expected there, if one is."""

    address: str
    cluster_id: str | None

    @property
    def url(self) -> str:
        """The address without a password."""
        return store_at(self.address).url


def read_home_store(home: Home) -> HomeStore:
    """Return the store that a home belongs to: the one in its note, or its own file."""
    try:
        with open(home.store_note, encoding="utf-8") as file:
            note = json.load(file)
        return HomeStore(str(note["address"]), str(note["cluster_id"]))
    except FileNotFoundError:
        return HomeStore(home.store, None)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StoreInvalid(
            f"{home.store_note}, which says where the state is, cannot be read: {error}",
            hint="Restore it, or name the store with `grid serve --new-cluster --store URL`.",
        ) from error


def find_ledger(home: Home) -> HomeStore:
    """Return the same with the ledger that is in the home's own file, if there is one."""
    found = read_home_store(home)
    if found.cluster_id is not None or not os.path.exists(found.address):
        return found
    try:
        return found._replace(cluster_id=ledger_at(found.address))
    except StoreInvalid:  # an empty file
        return found


def remember_home_store(home: Home, address: str, cluster_id: str) -> None:
    """Have every later controller of a home use this store."""
    if address != home.store:
        note = {"address": address, "cluster_id": cluster_id}
        replace_file(home.store_note, json.dumps(note).encode())
    elif os.path.exists(home.store_note):
        os.unlink(home.store_note)
    else:
        return
    sync_folder(home.folder)


def ledger_at(address: str) -> str:
    """Return the id of the ledger in a store; raise StoreInvalid if there is none."""
    from gridhand.store.reader import reading
    from gridhand.store.sql import schema

    with reading(address) as (_, connection):
        return str(connection.execute(select(schema.meta.c.cluster_id)).scalar_one())
