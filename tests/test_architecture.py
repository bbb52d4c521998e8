"""Imports point one way, names are told apart, and the way to `grid --help` stays light.

Each room of the package may import some others: at the top of its modules, or only inside
functions, where the cost and the tie arise when the function runs. A room that is not in the
table has no rules yet, so it fails until someone decides them.
"""

from __future__ import annotations

import ast
import functools
import importlib
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import gridhand

SOURCE = Path(gridhand.__file__).parent


class Rule(NamedTuple):
    """The rooms that a room may import besides itself, and `gridhand` for its version."""

    anywhere: frozenset[str]
    in_functions: frozenset[str] = frozenset()


def may(anywhere: str, in_functions: str = "") -> Rule:
    return Rule(frozenset(anywhere.split()), frozenset(in_functions.split()))


ROOMS = {
    #                  at the top of a module                    only inside functions
    "core":       may(""),
    "audit":      may(""),
    "posix":      may(""),
    "clock":      may(""),
    "home":       may("posix",                                  "core"),
    "config":     may("core"),
    "store":      may("core audit clock home posix"),
    "agent":      may("core clock home posix"),
    "simulate":   may("core clock home"),
    "engines":    may("core clock home posix agent"),
    "external":   may("core home posix agent engines client"),
    "controller": may("core audit clock config home posix store engines"),
    "api":        may("core clock home posix controller"),
    "client":     may("home posix",                             "core clock"),
    "worker":     may("core posix"),
    "library":    may("core audit clock home posix client worker", "controller store"),
    "cli":        may("core clock home posix client",           "agent api audit config controller engines external library simulate store"),
    "gridhand":   may("",                                       "config core library"),
}  # fmt: skip

# What core may use besides the standard library, and where.
NUMPY_IN_CORE = {
    "gridhand.core.placement.columns",
    "gridhand.core.placement.column_features",
    "gridhand.core.placement.row_log",
    "gridhand.core.explain.column_survey",
}

# What nobody should wait for who only wants to see the help.
HEAVY = {"alembic", "asyncio", "fastapi", "httpx", "numpy", "pydantic", "ray", "rich", "sqlalchemy"}


class Import(NamedTuple):
    module: str  # what is imported, in full
    line: int
    in_function: bool


class Module(NamedTuple):
    name: str
    is_package: bool
    text: str

    @property
    def tree(self) -> ast.Module:
        return parse(self.text)

    @property
    def room(self) -> str:
        return room_of(self.name)


@functools.cache  # and not before a test asks: each process of a test run collects this file
def parse(text: str) -> ast.Module:
    return ast.parse(text)


def room_of(name: str) -> str:
    """The part of `gridhand` that a module belongs to; `gridhand` for the package itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 else parts[0]


def read_modules(source: Path) -> dict[str, Module]:
    modules = {}
    for path in sorted(source.rglob("*.py")):
        parts = ("gridhand", *path.relative_to(source).with_suffix("").parts)
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        modules[name] = Module(name, is_package, path.read_text())
    return modules


MODULES = read_modules(SOURCE)


def imports(module: Module) -> Iterator[Import]:
    """Everything `module` imports when it runs; what only a type checker sees is left out."""
    yield from _imports(module, module.tree, in_function=False)


def _imports(module: Module, node: ast.AST, *, in_function: bool) -> Iterator[Import]:
    match node:
        case ast.Import(names=names):
            for alias in names:
                yield Import(alias.name, node.lineno, in_function)
        case ast.ImportFrom(names=names):
            base = _base(module, node)
            for alias in names:
                yield Import(_imported(base, alias.name), node.lineno, in_function)
        case ast.If(test=test, orelse=orelse) if _is_type_checking(test):
            for child in orelse:
                yield from _imports(module, child, in_function=in_function)
        case _:
            inside = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            for child in ast.iter_child_nodes(node):
                yield from _imports(module, child, in_function=in_function or inside)


def _base(module: Module, node: ast.ImportFrom) -> str:
    """The module after `from`, with the dots of a relative import resolved."""
    if not node.level:
        return node.module or ""
    parts = module.name.split(".")
    kept = len(parts) - node.level + module.is_package
    return ".".join([*parts[:kept], *filter(None, [node.module])])


def _imported(base: str, name: str) -> str:
    """What `from base import name` leads to: `from gridhand import Grid` is library.grid."""
    if base == "gridhand":
        base = gridhand._MODULES.get(name, base)
    below = f"{base}.{name}"
    known_room = base == "gridhand" and name in ROOMS
    return below if below in MODULES or known_room else base


def _is_type_checking(test: ast.expr) -> bool:
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def faults(module: Module) -> Iterator[str]:
    """Each import that the tables above do not allow, as a sentence."""
    rule = ROOMS.get(module.room)
    if rule is None:
        yield f"{module.name}: the room {module.room!r} has no rule in ROOMS"
        return
    for found in imports(module):
        target = room_of(found.module)
        where = f"{module.name}, line {found.line}: {found.module}"
        if found.module.split(".")[0] != "gridhand":
            if module.room == "core" and not _allowed_in_core(module, found):
                yield f"{where}: core imports the standard library and itself alone"
        elif target in {module.room, "gridhand"} and (target, module.room) != ("gridhand", "core"):
            continue
        elif target in rule.in_functions and not found.in_function:
            yield f"{where}: {module.room} may import {target} only inside a function"
        elif target not in rule.anywhere | rule.in_functions:
            yield f"{where}: {module.room} may not import {target}"


def _allowed_in_core(module: Module, found: Import) -> bool:
    package = found.module.split(".")[0]
    return package in sys.stdlib_module_names or (
        package == "numpy" and module.name in NUMPY_IN_CORE
    )


def loaded_with(name: str, modules: dict[str, Module]) -> set[str]:
    """All that is imported once `name` has been, ours and others', by what the files say."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        name = waiting.pop()
        while name and name not in seen:  # importing a.b.c imports a and a.b first
            seen.add(name)
            if name in modules:
                waiting += [i.module for i in imports(modules[name]) if not i.in_function]
            name = name.rpartition(".")[0]
    return seen


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_imports_point_one_way(module):
    assert list(faults(module)) == []


@pytest.mark.parametrize("module", MODULES.values(), ids=MODULES)
def test_a_module_opens_with_why_it_exists(module):
    assert ast.get_docstring(module.tree), f"{module.name} has no docstring"


# ---- names and sizes

CONVENTIONS = {"__init__", "__main__", "main", "base", "errors"}
# The modules of these rooms are named for what they serve, which has a module of its own.
NAMED_FOR_OTHERS = ("api.routes", "api.schemas", "audit", "cli.commands", "core.rows")
# A value of the core, and the handle that a program has of it.
SHARED_CLASS_NAMES = {"Allocation", "Job"}
LONGEST_FILE = 450
LONG_FILES = {"gridhand.core.errors"}  # a table


def path_of(module: Module) -> Path:
    parts = module.name.split(".")[1:]
    found = SOURCE.joinpath(*parts)
    return found / "__init__.py" if module.is_package else found.with_suffix(".py")


def repeated(names: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The names that are found in more than one place, and where."""
    places: dict[str, list[str]] = {}
    for name, place in names:
        places.setdefault(name, []).append(place)
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_module_is_named_for_an_activity():
    assert [name for name in MODULES if name.endswith("ing")] == []


def test_each_module_has_a_name_of_its_own():
    own = (
        (name.rpartition(".")[2], name)
        for name, module in MODULES.items()
        if not module.is_package
        and not any(name.startswith(f"gridhand.{room}.") for room in NAMED_FOR_OTHERS)
    )
    assert repeated(own).keys() <= CONVENTIONS


def test_each_class_has_a_name_of_its_own():
    classes = (
        (node.name, name)
        for name, module in MODULES.items()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    )
    assert repeated(classes).keys() <= SHARED_CLASS_NAMES


def test_files_are_short():
    lines = {name: len(path_of(one).read_text().splitlines()) for name, one in MODULES.items()}
    assert {name for name, count in lines.items() if count > LONGEST_FILE} <= LONG_FILES


# A sentence that opens like this has to be read twice.
RIDDLES = {"Who", "Whoever", "Those", "What", "Whatever", "That", "Of"}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_docstrings_open_with_their_subject(room):
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    texts = [
        f"{name}: {text.splitlines()[0]}"
        for name, module in MODULES.items()
        if module.room == room
        for node in ast.walk(module.tree)
        if isinstance(node, kinds) and (text := ast.get_docstring(node))
    ]
    assert [text for text in texts if text.split()[1].strip(",.:;") in RIDDLES] == []


LIGHT = [
    name
    for name, module in MODULES.items()
    if module.room in {"cli", "client", "gridhand", "home", "worker"}
]


@pytest.mark.parametrize("name", LIGHT)
def test_the_way_of_a_command_imports_nothing_heavy(name):
    assert loaded_with(name, MODULES) & HEAVY == set()


#    what it shows                              module              its source                                     the fault
SAMPLES = {
    "core imports nothing of ours":            ("core.sample",      "import gridhand.store.sql.sql_store",                   "may not import store"),
    "not even the version":                    ("core.sample",      "from gridhand import __version__",            "may not import gridhand"),
    "core may import itself":                  ("core.sample",      "from gridhand.core.errors import GridError",  None),
    "core may import the standard library":    ("core.sample",      "import heapq, collections.abc",               None),
    "core may not import other packages":      ("core.sample",      "import click",                                "standard library"),
    "numpy is for placement":                  ("core.placement.columns", "import numpy as np",                         None),
    "numpy is not for the rest of core":       ("core.sample",      "from numpy import typing",                    "standard library"),
    "a function hides nothing in core":        ("core.sample",      "def f():\n    import numpy",                  "standard library"),
    "a relative import is seen":               ("core.sample",      "from ..store import sql",                     "may not import store"),
    "a relative import of a room is seen":     ("core.sample",      "from .. import store",                        "may not import store"),
    "a relative import within is fine":        ("core.sample",      "from . import errors\nfrom .errors import X", None),
    "an import in try is seen":                ("store.sample",     "try:\n    import gridhand.api\nfinally: 1",   "may not import api"),
    "an import in a class is at the top":      ("library.sample",   "class A:\n    import gridhand.controller",    "only inside a function"),
    "types alone are not imported":            ("core.sample",      "if TYPE_CHECKING:\n    import numpy",         None),
    "but what is imported otherwise is":       ("core.sample",      "if TYPE_CHECKING: pass\nelse:\n import numpy", "standard library"),
    "agents do not know the store":            ("agent.sample",     "from gridhand.store import sql",              "may not import store"),
    "engines use agents":                      ("engines.local",    "from gridhand.agent import starter",          None),
    "the store knows no controller":           ("store.sample",     "import gridhand.controller.keeper.keeper",           "may not import controller"),
    "the api does not go round the keeper":    ("api.sample",       "import gridhand.store.sql.sql_store",                   "may not import store"),
    "core does not know where things are":     ("core.sample",      "import gridhand.home",                        "may not import home"),
    "the rest may":                            ("store.sample",     "from gridhand.home import Home",              None),
    "the client needs core when asked":        ("client.sample",    "def f():\n    import gridhand.core.errors",   None),
    "but loads nothing of it":                 ("client.sample",    "import gridhand.core.errors",                 "only inside a function"),
    "the client knows no controller":          ("client",           "import gridhand.controller",                  "may not import controller"),
    "a public name counts as its home":        ("controller.sample", "from gridhand import Grid",                  "may not import library"),
    "the library may start a keeper":          ("library.sample",   "def at():\n    import gridhand.controller",   None),
    "but does not load one":                   ("library.sample",   "import gridhand.controller",                  "only inside a function"),
    "a command may be the api":                ("cli.sample",       "async def f():\n    import gridhand.api",     None),
    "but does not load it":                    ("cli.sample",       "import gridhand.api",                         "only inside a function"),
    "the version may be known":                ("cli.sample",       "from gridhand import __version__",            None),
    "a new room needs a rule":                 ("attic.sample",     "",                                            "no rule"),
    "a new file at the top needs one too":     ("attic",            "",                                            "no rule"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "source", "fault"), SAMPLES.values(), ids=SAMPLES)
def test_the_checker(name, source, fault):
    found = list(faults(Module(f"gridhand.{name}", False, source)))
    if fault is None:
        assert found == []
    else:
        assert len(found) == 1
        assert fault in found[0]


def test_the_checker_follows_imports_through_other_modules():
    sources = {
        "gridhand.client": "from gridhand.core.ledger.ledger import Ledger",
        "gridhand.core": "",
        "gridhand.core.ledger.ledger": "import gridhand.core.placement.place\ndef f():\n    import asyncio",
        "gridhand.core.placement.place": "import numpy",
    }
    modules = {n: Module(n, n == "gridhand.core", s) for n, s in sources.items()}
    assert loaded_with("gridhand.client", modules) & HEAVY == {"numpy"}


#    what is run                code
LIGHT_STARTS = {
    "import gridhand":         "import gridhand",
    "grid --help":             "from gridhand.cli.main import main; sys.argv[1:] = ['--help']; main()",
    "grid --version":          "from gridhand.cli.main import main; sys.argv[1:] = ['--version']; main()",
}  # fmt: skip


@pytest.mark.parametrize("code", LIGHT_STARTS.values(), ids=LIGHT_STARTS)
def test_nothing_heavy_is_loaded(code):
    report = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    # Measuring coverage in the new process would load what this looks for.
    environment = {k: v for k, v in os.environ.items() if not k.startswith("COVERAGE_")}
    done = subprocess.run(
        [sys.executable, "-c", report + code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(done.stderr.split())
    assert "gridhand" in loaded
    assert loaded & HEAVY == set()


def test_public_names_are_sorted_and_each_has_a_home():
    assert gridhand.__all__ == sorted(gridhand.__all__)
    assert sorted(gridhand._MODULES) == gridhand.__all__
    assert set(gridhand.__all__) <= set(dir(gridhand))


@pytest.mark.parametrize("name", gridhand.__all__)
def test_a_public_name_resolves(name):
    assert getattr(gridhand, name) is not None
    assert name in vars(gridhand)  # found without asking the next time


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = gridhand.no_such_name


def test_type_checkers_see_the_same_names():
    [block] = [node for node in MODULES["gridhand"].tree.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == gridhand._MODULES


def test_every_error_is_public():
    errors = importlib.import_module("gridhand.core.errors")
    kinds = {
        name
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, errors.GridError)
    }
    assert kinds <= set(gridhand.__all__)
