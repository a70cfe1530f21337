"""A scheduler that was restored from a snapshot orders what the first one does, at any point of any history."""

import functools
import json
import operator
from typing import Any

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.scheduling import codec
from chicle_elastic.scheduling.effects import Effect
from chicle_elastic.scheduling.events import Event
from chicle_elastic.scheduling.members import GROUPS
from chicle_elastic.scheduling.pending_policies import DecidingPolicy
from chicle_elastic.scheduling.scheduler import Scheduler, SchedulerSettings
from chicle_elastic.scheduling.snapshot import PARTS, STATE, restore, snapshot, to_text
from chicle_elastic.values import Decision, Observations
from tests.harness.sim_cluster import SimCluster
from tests.scheduling.stage import Stage

NUM_HISTORIES = 400
WIRING = {
    "": {
        "settings",
        "policies",
        "ledger",
        "_effects",
        "_emit",
        "_answers",
        *(name for name in STATE if name and "." not in name),
    },
    "_members": {"_is_due"},
    "_pending_policies": {"_given", "_policies", "_places", "_names", "recent"},
    "_pending_policies.recent": {"_length"},
}
"""What is not kept of a part, and is found again from what is; the policies have a place of their own."""
GIVEN = {"_emit", "_ledger", "_settings", "_max_attempts", "_leave"} | {
    name for name in STATE if name and "." not in name
}
"""What parts are made with: other parts, or what the job was begun with."""


class Restless:
    """Takes the place of a scheduler in a simulated cluster: a plain one, and one that goes through JSON now and then.

    Both handle every event, and what they order is compared.
    """

    def __init__(self, settings: SchedulerSettings, policies: tuple[DecidingPolicy, ...], *, every: int) -> None:
        self.first = Scheduler(settings, policies)
        self.other = restore(travelled(self.first), policies)
        self._every = every
        self._num_events = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.first, name)

    def handle(self, event: Event, *, now: float) -> list[Effect]:
        """Both, compared."""
        self._num_events += 1
        if self._num_events % self._every == 0:
            self.other = restore(travelled(self.other), self.first.policies)
        ordered = self.first.handle(event, now=now)
        assert self.other.handle(event, now=now) == ordered
        return ordered


def travelled(scheduler: Scheduler) -> Any:
    """A snapshot after a journey as text."""
    return json.loads(json.dumps(snapshot(scheduler), allow_nan=False))


@pytest.mark.parametrize("every", [1, 7])
def test_a_restored_scheduler_emits_the_same_effects_for_the_rest_of_the_history(every: int) -> None:
    """Seeded histories with crashes, full memory, zombies and odd policies; a snapshot at any point of them."""
    for seed in range(NUM_HISTORIES if every > 1 else NUM_HISTORIES // 10):
        cluster = SimCluster(seed, make_scheduler=functools.partial(Restless, every=every)).run()
        assert travelled(cluster.scheduler.other) == travelled(cluster.scheduler.first)


def test_each_part_keeps_what_it_knows_in_fields() -> None:
    """A snapshot has the fields with a default; a variable of another kind would be lost in it without a word."""
    scheduler = Stage(4, ["a", "b"]).scheduler
    for name in PARTS:
        part = operator.attrgetter(name)(scheduler) if name else scheduler
        others = vars(part).keys() - GROUPS.keys() - set(STATE[name])
        assert others <= GIVEN | WIRING.get(name, set()), name or "Scheduler"


class Talker:
    """Raises whenever it is asked."""

    name = "talker"

    def decide(self, observations: Observations, /) -> Decision | None:
        """Never anything of use."""
        raise RuntimeError("no idea")


def test_a_dismissed_policy_stays_dismissed() -> None:
    """Else it would be asked again on some agents and not on others."""
    policies = (Talker(),)
    stage = Stage(4, ["a", "b"], policies=policies)
    stage.run(2)
    assert any("talker is disabled" in line for line in stage.logs)
    other = restore(travelled(stage.scheduler), policies)
    assert not other._pending_policies.has_policies


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"format": "story"}, "no snapshot"),
        ({"version": 99}, "version 99"),
        ({"policies": ["Rebalance"]}, "Rebalance"),
        ({"parts": {}}, "and the parts"),
        ({"enabled": [0]}, "policies that are enabled"),
        ({"settings": {"seed": "x"}}, "settings: .*`SchedulerSettings.seed`"),
    ],
)
def test_what_is_no_snapshot_of_this_job_is_refused(change: dict[str, Any], words: str) -> None:
    """With a sentence that says what is wrong."""
    data = snapshot(Stage(4, ["a", "b"]).scheduler) | change
    with pytest.raises(ProtocolError, match=words):
        restore(data)


@pytest.mark.parametrize("variable", [(name, variable) for name, part in STATE.items() for variable in part])
def test_a_variable_of_another_type_is_refused(variable: tuple[str, str]) -> None:
    """Nothing that came over a link is taken for what it is not."""
    stage = Stage(4, ["a", "b"])
    stage.run()
    data = travelled(stage.scheduler)
    data["parts"][variable[0]][variable[1]] = 7 if variable[1] == "memories" else {"some": "thing"}
    with pytest.raises(ProtocolError, match=variable[1]):
        restore(data)


def test_what_a_chunk_has_travels_as_text() -> None:
    """A node that joins makes its ledger of it without a list for each chunk; text of another kind is refused."""
    stage = Stage(4, ["a", "b"])
    stage.run()
    sent = codec.encode(snapshot(stage.scheduler, write=codec.to_raw, write_large=to_text), Any)
    data = json.loads(sent)
    assert travelled(restore(data)) == travelled(stage.scheduler)
    for name, variable in (("ledger", "_entries"), ("ledger", "_infos"), ("ledger", "node_chunks")):
        assert isinstance(data["parts"][name][variable], str)
        for text in ("[", '{"0": 7}'):
            parts = data["parts"] | {name: data["parts"][name] | {variable: text}}
            with pytest.raises(ProtocolError, match=variable):
                restore(data | {"parts": parts})


def test_a_type_without_a_place_is_the_fault_of_whoever_added_it() -> None:
    """Not of a peer."""
    with pytest.raises(TypeError, match="no place"):
        codec.to_values({}, dict[str, complex])
