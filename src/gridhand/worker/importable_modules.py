"""Which modules another process can import under their names, as this process knows them.

A module may be known here by a name that leads to nothing, or to something else, elsewhere: the
main module of a child of `multiprocessing`, a file run by `runpy`, a test module that pytest has
loaded from its path. So the module is looked for as an import would, without `sys.modules`.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_MOST_KNOWN = 10_000
_known: dict[tuple[str, str | None, tuple[Any, ...]], bool] = {}


def is_importable(name: str) -> bool:
    """Return whether a worker that imports this name gets the module that is known here by it."""
    top, _, _ = name.partition(".")
    if top in sys.stdlib_module_names and top != "__main__":
        return True
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    key = name, file, tuple(sys.path)
    found = _known.get(key)
    if found is None:
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        found = _known[key] = module is not None and _leads_to(name, module, file)
    return found


def _leads_to(name: str, module: ModuleType, file: str | None) -> bool:
    spec = _find(name)
    if spec is not None and spec.origin is not None and file is not None:
        return _same_file(spec.origin, file)
    parent, _, _ = name.rpartition(".")
    if spec is None and file is None and parent:
        return is_importable(parent)  # which makes it when it is imported
    return spec is not None and file is None


def _find(name: str) -> ModuleSpec | None:
    """Return where an import would find the module."""
    parent, _, _ = name.rpartition(".")
    path = None
    if parent:
        package = _find(parent)
        if package is None or package.submodule_search_locations is None:
            return None
        path = list(package.submodule_search_locations)
    for finder in sys.meta_path:
        try:
            spec = finder.find_spec(name, path)
        except Exception:  # a finder of somebody else
            continue
        if spec is not None:
            return spec
    return None


def _same_file(first: str, second: str) -> bool:
    try:
        return os.path.samefile(first, second)
    except OSError:  # inside of an archive
        return os.path.abspath(first) == os.path.abspath(second)
