"""Every effect reaches the method that is named after it, in every shell."""

import re
import typing

import pytest

from chicle_elastic.cluster.agent.effect_executor import EffectExecutor
from chicle_elastic.runtime import in_process
from chicle_elastic.scheduling.effect_handler import EffectHandler, dispatch
from chicle_elastic.scheduling.effects import Effect
from tests.harness.sim_cluster import SimCluster
from tests.scheduling.test_recording import EVERY_EFFECT


def method_of(effect_type):
    """The name of its method: FormRound -> form_round."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", effect_type.__name__).lower()


class Shell:
    """Has every method there could be, and remembers which one got what."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda effect: self.calls.append((name, effect))


@pytest.mark.parametrize("effect", EVERY_EFFECT, ids=lambda value: type(value).__name__)
def test_the_dispatch_reaches_the_method_of_an_effect_and_no_other(effect):
    """Once, with the effect itself."""
    shell = Shell()
    dispatch(effect, shell)
    [(name, given)] = shell.calls
    assert name == method_of(type(effect))
    assert given is effect


def test_the_protocol_has_a_method_for_every_effect_and_no_more():
    """A new effect is a new method."""
    methods = {name for name in vars(EffectHandler) if not name.startswith("_")}
    assert methods == {method_of(effect_type) for effect_type in typing.get_args(Effect)}


@pytest.mark.parametrize("shell", [in_process._Shell, EffectExecutor, SimCluster], ids=lambda shell: shell.__name__)
def test_every_shell_has_every_method_with_its_effect(shell):
    """mypy says so as well, where the shell is given to `dispatch`; here without it."""
    for effect_type in typing.get_args(Effect):
        hints = typing.get_type_hints(getattr(shell, method_of(effect_type)))
        assert hints["effect"] is effect_type


def test_what_is_no_effect_is_not_lost():
    """No method is called, and the shell does not go on as if it had been."""
    shell = Shell()
    with pytest.raises(AssertionError, match="unreachable"):
        dispatch("FormRound", shell)
    assert shell.calls == []
