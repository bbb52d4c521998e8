"""Modules that another process could not import under their names."""

import sys
from types import ModuleType

from gridhand.worker.importable_modules import is_importable


def load(name, path):
    module = ModuleType(name)
    module.__file__ = str(path)
    return module


def test_what_an_import_finds_is_importable():
    for name in ("json", "json.decoder", "sys", "numpy", "gridhand.worker.wire", "pytest"):
        __import__(name)
        assert is_importable(name), name


def test_a_module_that_an_import_does_not_find_is_not(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "made_up", load("made_up", tmp_path / "made_up.py"))
    monkeypatch.setitem(sys.modules, "__mp_main__", load("__mp_main__", __file__))
    monkeypatch.setitem(sys.modules, "made_of_nothing", ModuleType("made_of_nothing"))
    for name in ("made_up", "__mp_main__", "made_of_nothing", "not_there"):
        assert not is_importable(name), name


def test_a_module_under_whose_name_another_is_found_is_not(monkeypatch, tmp_path):
    for folder in ("first", "second"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "both_here.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path / "first"))
    ours = load("both_here", tmp_path / "second" / "both_here.py")
    monkeypatch.setitem(sys.modules, "both_here", ours)
    assert not is_importable("both_here")
    monkeypatch.syspath_prepend(str(tmp_path / "second"))
    assert is_importable("both_here")
