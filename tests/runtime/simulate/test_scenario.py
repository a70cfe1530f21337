"""Scenarios: what cannot be is refused, with file, line and key."""

from pathlib import Path

import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.runtime.simulate.scenario import (
    Scenario,
    SimulatedJob,
    SimulatedLoss,
    SimulatedNode,
    SimulatedSupply,
)

NODE = '[[nodes]]\nname = "n"\n'

BAD = {
    "an unknown key": (NODE + "sped = 2", "bad.toml:3: nodes[0].sped: there is no such key; there are name"),
    "an unknown table": ("[network2]\n" + NODE, "network2: there is no such key; there are seed, job"),
    "no nodes": ("seed = 1", "nodes: there are none, and no supply of any"),
    "a node without name": ("[[nodes]]\ncount = 2", "bad.toml:1: nodes[0]: Object missing required field `name`"),
    "text for a number": (NODE + 'speed = "fast"', "bad.toml:3: nodes[0].speed: Expected `float`, got `str`"),
    "speed 0": (NODE + "speed = 0", "bad.toml:3: nodes[0].speed=0.0: it must be >= 1e-09 and finite"),
    "a speed that is no number": (NODE + "speed = nan", "speed=nan: it must be >= 1e-09 and finite"),
    "seconds without end": (
        "[job]\nrow_s = 1e300\n" + NODE,
        "bad.toml:2: job.row_s=1e+300: it must be > 0 and <= 1e+09",
    ),
    "one table for several": ('[nodes]\nname = "n"', "bad.toml:1: nodes: Expected `array`, got `object`"),
    "a node that dies before it joins": (
        NODE + "joins_s = 60.0\ndies_s = 30.0",
        "bad.toml:4: nodes[0].dies_s=30.0: it must be > 60",
    ),
    "the second node is noticed before it has booted": (
        NODE + '[[nodes]]\nname = "m"\nboot_s = 9.0\nnotice_s = 5.0',
        "bad.toml:6: nodes[1].notice_s=5.0: it must be > 9",
    ),
    "a node that dies before its notice": (
        NODE + "notice_s = 9.0\ndies_s = 5.0",
        "dies_s=5.0: it must be > notice_s=9",
    ),
    "two nodes of one name": (NODE + NODE, "bad.toml:4: nodes[1].name='n': another node has this name"),
    "memory for no chunk": (NODE + "memory_bytes = 10", "it must be >= job.chunk_bytes=1048576"),
    "state larger than its chunk": (
        "[job]\nchunk_bytes = 10\nstate_bytes = 11\n" + NODE,
        "bad.toml:3: job.state_bytes=11",
    ),
    "a loss of an unknown node": (NODE + '[[losses]]\nat_s = 5.0\nnodes = ["m"]', "there is no node 'm'; there are n"),
    "a loss before the node joins": (
        NODE + 'joins_s = 9.0\n[[losses]]\nat_s = 5.0\nnodes = ["n"]',
        "losses[0].nodes: n joins at second 9, and is lost at 5",
    ),
    "a loss of a node that is gone": (
        NODE + 'dies_s = 3.0\n[[losses]]\nat_s = 5.0\nnodes = ["n"]',
        "n is gone at second 3, before its loss at 5",
    ),
    "a loss of nothing": (NODE + "[[losses]]\nat_s = 5.0", "a loss has either nodes or a share of them"),
    "more nodes needed than there are": ("[job]\nmin_nodes = 3\n" + NODE, "it needs 3 nodes to begin"),
    "fewer at most than at least": (
        "[job]\nmin_nodes = 3\nmax_nodes = 2\n" + NODE,
        "max_nodes=2: it must be >= min_nodes=3",
    ),
    "a supply of nothing": ("[supply]\nboot_s = 1.0", "a supply has either steps or a trace"),
    "steps out of order": (
        "[supply]\nsteps = [[0, 1], [9, 2], [5, 1]]",
        "steps=[5.0, 1.0]: it must come after second 9",
    ),
    "an unknown unit": (
        '[supply]\ntrace = "x"\ntrace_unit = "h"',
        "bad.toml:3: supply.trace_unit='h': it must be one of s, ms",
    ),
    "half a node": ("[supply]\nsteps = [[0, 1.5]]", "nodes must be an integer"),
    "a name of the supply": (NODE.replace('n"', 'spot-1"') + "[supply]\nsteps = [[0, 1]]", "supply.name='spot'"),
    "a loss that nothing computes": (
        '[data]\nfolder = "x"\nloss = "mse"\n' + NODE,
        "loss='mse': it must be one of hinge",
    ),
    "no TOML": ("[job\n", "bad.toml: "),
}


@pytest.mark.parametrize("what", BAD)
def test_a_scenario_that_cannot_be_is_refused_with_file_and_key(what: str, tmp_path: Path) -> None:
    """Before anything is simulated."""
    text, message = BAD[what]
    path = tmp_path / "bad.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError) as raised:
        Scenario.read(path)
    assert str(path) in str(raised.value)
    assert message in str(raised.value)


def test_a_file_says_the_same_as_python(tmp_path: Path) -> None:
    """Integers will do where seconds are meant."""
    path = tmp_path / "small.toml"
    text = (
        '[job]\nchunks = 8\npolicies = ["none"]\n[[nodes]]\nname = "n"\ndies_s = 7\n[[losses]]\nat_s = 3\nshare = 0.5\n'
    )
    path.write_text(text + "[supply]\nsteps = [[0, 2], [5, 1, 0.5]]\n", encoding="utf-8")
    assert Scenario.read(path) == Scenario(
        name="small",
        job=SimulatedJob(chunks=8, policies=("none",)),
        nodes=(SimulatedNode(name="n", dies_s=7.0),),
        losses=(SimulatedLoss(at_s=3.0, share=0.5),),
        supply=SimulatedSupply(steps=((0, 2), (5, 1, 0.5))),
    )


def test_a_trace_is_read_beside_its_scenario(tmp_path: Path) -> None:
    """With blanks or commas, comments and empty lines."""
    path = tmp_path / "spot.toml"
    path.write_text('[supply]\ntrace = "spot.txt"\nboot_s = 2\n', encoding="utf-8")
    (tmp_path / "spot.txt").write_text("# seconds nodes price\n0 4 0.3\n\n60,2,0.5 # fewer\n", encoding="utf-8")
    supply = Scenario.read(path).supply
    assert supply == SimulatedSupply(steps=((0.0, 4.0, 0.3), (60.0, 2.0, 0.5)), boot_s=2.0)


def test_a_scenario_names_unit_and_beginning_of_its_trace(tmp_path: Path) -> None:
    """And a price, where the trace has none."""
    path = tmp_path / "spot.toml"
    text = '[supply]\ntrace = "spot.txt"\ntrace_unit = "ms"\ntrace_from_s = 30\nprice = 0.5\n'
    path.write_text(text, encoding="utf-8")
    (tmp_path / "spot.txt").write_text("0,4\n60000,2\n", encoding="utf-8")
    supply = Scenario.read(path).supply
    assert supply is not None
    assert supply.steps == ((0.0, 4.0), (30.0, 2.0))
    assert supply.price_at(40.0) == 0.5


def test_a_node_of_the_supply_costs_the_price_of_each_second() -> None:
    """Prices change while it is there; the last one holds on, and where there is none it is 1."""
    supply = SimulatedSupply(steps=((0, 4, 2.0), (10, 4, 5.0), (20, 4)))
    assert supply.cost(5.0, 12.0) == 5 * 2.0 + 2 * 5.0
    assert supply.cost(15.0, 30.0) == 15 * 5.0
    assert SimulatedSupply(steps=((0, 1),)).cost(0.0, 3.0) == 3.0
