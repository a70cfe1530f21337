"""Every effect reaches the method that is named after it, in every shell."""

import typing

import pytest

from chicle_elastic.cluster.agent.effect_executor import EffectExecutor
from chicle_elastic.runtime import in_process
from chicle_elastic.runtime.simulate.virtual_cluster import VirtualCluster
from chicle_elastic.scheduling.effects import METHODS, CopyChunks, Effect, FormRound, Log, dispatch
from tests.harness.sim_cluster import SimCluster
from tests.scheduling.test_recording import EVERY_EFFECT


class Shell:
    """Has every method there could be, and remembers which one got what."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda effect: self.calls.append((name, effect))


def test_the_dispatch_reaches_the_method_of_an_effect_and_no_other():
    """Once, with the effect itself; what is no effect reaches none."""
    shell = Shell()
    for effect in EVERY_EFFECT:
        dispatch(effect, shell)
    assert shell.calls == [(METHODS[type(effect)], effect) for effect in EVERY_EFFECT]
    assert [METHODS[kind] for kind in (FormRound, CopyChunks, Log)] == ["form_round", "copy_chunks", "log"]
    with pytest.raises(KeyError):
        dispatch("FormRound", shell)
    assert len(shell.calls) == len(EVERY_EFFECT)


@pytest.mark.parametrize("shell", [in_process._Shell, EffectExecutor, SimCluster, VirtualCluster])
def test_every_shell_has_every_method_with_its_effect(shell):
    """A new effect is a new method of every shell."""
    for kind in typing.get_args(Effect):
        assert typing.get_type_hints(getattr(shell, METHODS[kind]))["effect"] is kind
