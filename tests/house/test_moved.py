"""An import path of an earlier 0.x fails with the new one in its message, and the new one works."""

import importlib
import pickle
import sys

import pytest

import chicle_elastic
from chicle_elastic.moved import MOVED, MovedFinder

MODULES = [f"chicle_elastic.{old}" for old in MOVED if old.count(".") == 1]
NAMES = [f"chicle_elastic.{old}" for old in MOVED if old.count(".") == 2]


@pytest.mark.parametrize("old", MODULES)
def test_importing_a_module_that_has_moved_names_the_new_place(old: str) -> None:
    """By both statements, and by importlib, as entry points are loaded."""
    new = MOVED[old.removeprefix("chicle_elastic.")]
    for statement in (f"import {old}", f"from {old} import anything"):
        with pytest.raises(ImportError) as caught:
            exec(statement, {})
        assert str(caught.value) == f"{old} has moved; write: {new}"
    with pytest.raises(ImportError, match="has moved"):
        importlib.import_module(old)


@pytest.mark.parametrize("old", NAMES)
def test_importing_a_name_that_has_moved_names_the_new_place(old: str) -> None:
    """The module of old is a package today, or has lost the name."""
    new = MOVED[old.removeprefix("chicle_elastic.")]
    package, _, name = old.rpartition(".")
    with pytest.raises(ImportError) as caught:
        exec(f"from {package} import {name}", {})
    assert str(caught.value) == f"{old} has moved; write: {new}"
    with pytest.raises((AttributeError, ImportError), match="has moved"):
        getattr(importlib.import_module(package), name)


@pytest.mark.parametrize("new", [new for new in MOVED.values() if new.startswith("from ")])
def test_the_new_place_is_there(new: str) -> None:
    """What a message says to write can be executed."""
    exec(new, {})


def test_a_package_where_a_module_was_answers_as_usual_otherwise() -> None:
    """`hasattr` and slips of the pen are as with any package."""
    from chicle_elastic.cluster import local

    assert not hasattr(local, "LocalCluster")
    assert not hasattr(local, "anything")
    with pytest.raises(AttributeError, match=r"chicle_elastic\.cluster\.local' has no attribute 'anything'"):
        _ = local.anything
    with pytest.raises(ImportError, match="cannot import name 'anything'"):
        exec("from chicle_elastic.cluster.local import anything", {})
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'chicle_elastic\.runtime\.anything'"):
        importlib.import_module("chicle_elastic.runtime.anything")


def test_an_old_pickle_says_where_its_class_is() -> None:
    """A pickle names its class by the old path."""
    old = b"cchicle_elastic.runtime.job\nOutcome\n."
    with pytest.raises(ImportError, match="write: from chicle_elastic import Job, Outcome"):
        pickle.loads(old)


def test_the_finder_is_asked_last_and_is_there_once() -> None:
    """What Python finds anywhere, it finds without it; modules of others are none of its business."""
    importlib.reload(chicle_elastic)
    assert sys.meta_path.count(MovedFinder) == 1
    assert sys.meta_path.index(MovedFinder) > sys.meta_path.index(importlib.machinery.PathFinder)
    assert MovedFinder.find_spec("runtime.job") is None
    assert MovedFinder.find_spec("chicle_elastic.runtime.anything") is None
