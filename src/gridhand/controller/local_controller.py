"""The controller of a home: on the store of the home, for the nodes of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gridhand.controller.controller import Controller
from gridhand.controller.jobs.job_users import JobUsers
from gridhand.controller.listen_options import ListenOptions
from gridhand.controller.machine_name import machine_name
from gridhand.controller.settings import Settings
from gridhand.engines.virtual_nodes import engine_of, read_virtual_nodes, write_virtual_nodes
from gridhand.home import Home
from gridhand.posix.privileges import drop_groups
from gridhand.store.base import Store
from gridhand.store.home_store import (
    HomeStore,
    find_ledger,
    read_home_store,
    remember_home_store,
)
from gridhand.store.ownership import Taking
from gridhand.store.urls import store_at


@dataclass(frozen=True, slots=True)
class StartOptions:
    """The wishes of the user who starts a controller. A home remembers its store and its nodes."""

    store: str | None = None
    config: str | None = None  # the path of a configuration file
    new_cluster: bool = False
    virtual_nodes: Mapping[str, str] = field(default_factory=dict)  # amounts by name
    system: bool = False  # for all users of the machine
    listen: ListenOptions = field(default_factory=ListenOptions)


def local_controller(home: Home, start: StartOptions) -> Controller:
    """Return a controller that runs jobs on this machine, by default on the home's own store."""
    settings = Settings(start.config or home.config_file())
    if start.system:
        settings.check_admin_group()
        drop_groups()  # so that files are read with no more than the rights of their users
    start = replace(start, store=start.store or settings.store)
    known = _known_store(home, start)
    store = _open_at(start.store or known.address, known, new=start.new_cluster)
    engine = engine_of(home, start.virtual_nodes or read_virtual_nodes(home))

    def remember(cluster_id: str) -> None:
        remember_home_store(home, store.address, cluster_id)
        if start.virtual_nodes:
            write_virtual_nodes(home, start.virtual_nodes)

    machine = machine_name(home) if store.shared else ""
    return Controller(
        home,
        store,
        engine,
        settings=settings,
        belongs_to=known,
        machine=machine,
        users=JobUsers(shared=start.system, admin_group=lambda: settings.admin_group),
        taken=remember,
    )


def _known_store(home: Home, start: StartOptions) -> HomeStore:
    if start.store is None or start.store == home.store:
        return read_home_store(home)
    return HomeStore(home.store, None) if start.new_cluster else find_ledger(home)


def _open_at(address: str, known: HomeStore, *, new: bool) -> Store:
    """Return the store, which must exist if the home has a ledger."""
    must_exist = known.cluster_id is not None and not new
    why_exist = f"this home belongs to the store {known.url}, and no new one is created"
    return store_at(address, Taking(must_exist=must_exist, why_exist=why_exist))
