"""States as vectors: every field of every state comes back, and what a pass does not need is left out."""

import dataclasses
import enum
import math
import typing

import numpy as np
import pytest

from chicle_elastic.chunks.sources import ArraySource
from chicle_elastic.chunks.views import Array
from chicle_elastic.solvers.linear.newton.state import NewtonState
from chicle_elastic.solvers.linear.path import PathState
from chicle_elastic.solvers.linear.progress import Numbers, ProgressState
from chicle_elastic.solvers.linear.working_set.steps import WorkingSetState
from tests.solvers.golden_runs import TRAINERS, data

STATES = (NewtonState, WorkingSetState, PathState)


def value_of(field, rng):
    """Something that the field may hold; floats that no other format than float64 keeps."""
    kind = field.type
    if kind == Numbers:
        return rng.integers(0, 1 << 52, int(rng.integers(0, 4)))
    if kind == Array:
        return rng.normal(size=int(rng.integers(0, 5)))
    if typing.get_origin(kind) is list:
        return [filled(typing.get_args(kind)[0], rng) for _ in range(int(rng.integers(0, 4)))]
    if issubclass(kind, enum.Enum):
        return list(kind)[int(rng.integers(len(kind)))]
    if kind is bool:
        return bool(rng.integers(0, 2))
    return (
        int(rng.integers(0, 1 << 52)) if kind is int else float(rng.choice([math.inf, math.nan, 0.1, -1e-300, 3e300]))
    )


def filled(cls, rng):
    """A state with something in every field."""
    return cls(**{field.name: value_of(field, rng) for field in dataclasses.fields(cls)})


def assert_same(found, expected):
    """Every scalar with its type; every array that is kept."""
    for field in dataclasses.fields(expected):
        one, other = getattr(found, field.name), getattr(expected, field.name)
        assert type(one) is type(other), field.name
        if isinstance(other, list):
            for pair in zip(one, other, strict=True):
                assert_same(*pair)
        elif isinstance(other, np.ndarray) and field.name not in expected.kept():
            assert not len(one)
        else:
            np.testing.assert_array_equal(one, other, err_msg=field.name)
            assert np.shape(one) == np.shape(other)
            assert np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.parametrize("cls", STATES)
def test_a_state_comes_back_from_its_vector(cls):
    """And makes the same vector again; no other class takes it for one of its own."""
    for seed in range(12):
        state = filled(cls, np.random.default_rng(seed))
        vector = state.encode()
        assert vector.dtype == np.float64
        found = cls.decode(vector)
        assert_same(found, state)
        np.testing.assert_array_equal(found.encode(), vector)
        assert [each for each in STATES if each.is_of(vector)] == [cls]
    assert not cls.is_of(np.zeros(0))


@pytest.mark.parametrize("cls", [NewtonState, WorkingSetState])
def test_a_state_may_stand_in_place_of_its_vector(cls):
    """NumPy makes the vector where it is asked for, and that of a path from the state of its stage."""
    for seed in range(6):
        inner, outer = (filled(each, np.random.default_rng(seed)) for each in (cls, PathState))
        state = dataclasses.replace(outer, inner=inner)
        expected = dataclasses.replace(outer, inner=filled(cls, np.random.default_rng(seed)).encode())
        np.testing.assert_array_equal(np.concatenate([np.zeros(1), state])[1:], expected.encode())
        assert PathState.is_of(state)
        assert not cls.is_of(state)


@pytest.mark.parametrize("cls", STATES)
def test_a_state_that_is_changed_belongs_to_nobody_else(cls):
    """All who only look have the same one; what is taken has parts of its own."""
    state = filled(cls, np.random.default_rng(3))
    expected, taken = cls.decode(state.encode()), cls.take(state)
    assert cls.look(state) is state
    for each in (taken, *getattr(taken, "outputs", ())):
        setattr(each, dataclasses.fields(each)[0].name, None)
    assert_same(cls.decode(state.encode()), expected)
    assert_same(cls.take(state.encode()), expected)


@pytest.mark.parametrize("cls", [NewtonState, WorkingSetState])
def test_a_state_that_is_carried_on_is_that_of_its_vector(cls):
    """Of all tasks some may have decoded it; and memory of sums is used again, so no array is a part of another."""
    for seed in range(6):
        state = filled(cls, np.random.default_rng(seed))
        outputs = getattr(state, "outputs", [state])
        for each in outputs:
            for field in dataclasses.fields(each):
                if field.type == Array:
                    setattr(each, field.name, np.random.default_rng(seed).normal(size=(2, 7, 3))[1])
                elif field.type is float:
                    setattr(each, field.name, np.float64(getattr(each, field.name)))
        vector = state.encode()
        assert state.ready() is state
        assert_same(state, cls.decode(vector))
        arrays = [getattr(each, field.name) for each in outputs for field in dataclasses.fields(each)]
        assert all(value.base is None for value in arrays if isinstance(value, np.ndarray))


def test_a_class_with_other_fields_is_another_kind():
    """A checkpoint of an earlier one is not read from the wrong places."""
    names = [(field.name, field.type) for field in dataclasses.fields(NewtonState)]
    for kept, is_same in ((names, True), (names[1:], False), (names[::-1], False)):
        other = dataclasses.make_dataclass("NewtonState", kept, bases=(ProgressState,))
        vector = filled(other, np.random.default_rng(0)).encode()
        assert NewtonState.is_of(vector) == is_same


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_begins_anew_from_a_progress_of_another_layout(name):
    """As from a checkpoint of an earlier version: the model is kept, and what is begun is what it begins with."""
    trainer = TRAINERS[name]
    X, y = data(name, "dense")
    schema = ArraySource(X, y, max_tasks=2).schema
    model = trainer.init(schema, np.random.default_rng(0))
    begun = trainer.begin(schema, model, np.arange(40.0), 2)
    np.testing.assert_array_equal(begun, trainer.begin(schema, model, np.zeros(0), 2))
    assert trainer.update_size(model, begun) > 0
