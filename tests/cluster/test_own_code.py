"""Code of a notebook on its way to the tasks: all that it needs goes along, and what cannot is refused by name."""

import sys

import pytest

from chicle_elastic.cluster import own_code
from chicle_elastic.errors import UsageError
from tests.cluster.notebooks import notebook
from tests.solvers import nets

CELLS = (
    "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nWIDTH = 4\nSIZES = {'out': [3]}\n",
    "def squash(x, kind=F.relu):\n    return kind(x) * SCALE\n\nSCALE = 1.0\n",
    """
class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, WIDTH, 3)
""",
    """
class Mine(Base):
    "A comment."

    def __init__(self, extra=0):
        super().__init__()
        self.out = nn.Linear(WIDTH * 36 + extra, SIZES["out"][0])

    def forward(self, x):
        return self.out(squash(self.conv(x)).flatten(1))
""",
)


def collected(cells, name):
    """Text and loaded module of a class of a notebook."""
    with notebook(*cells) as names:
        trainer, module, text = own_code.portable(nets.trainer(nets.network(names[name])))
        del trainer
    try:
        return text, own_code.load(module, text)
    finally:
        sys.modules.pop(module, None)


def test_a_class_takes_along_what_it_uses():
    """Base classes, functions and constants of other cells; imports are made again, and nothing else comes."""
    text, module = collected((*CELLS, "unused = open\nclass Unused: ...\n"), "Mine")
    assert module.Mine(2).out.in_features == 4 * 36 + 2
    assert "nused" not in text
    assert module.Mine.__module__.startswith("chicle_own_code_")


def test_the_last_definition_counts():
    """A cell that was run again has replaced the class."""
    text, module = collected((*CELLS, CELLS[-1].replace("+ extra", "+ 2 * extra")), "Mine")
    assert "2 * extra" in text
    assert module.Mine(2).out.in_features == 4 * 36 + 4


def test_what_is_no_code_is_refused_by_name():
    """An open file, a tensor, or a class within a function."""
    with (
        notebook(
            *CELLS, "weights = torch.ones(3)\nclass Bad(Mine):\n    def forward(self, x):\n        return weights\n"
        ) as names,
        pytest.raises(UsageError, match="weights is a Tensor, which cannot travel"),
    ):
        own_code.collect(names["Bad"])
    with (
        notebook(CELLS[0], "def f():\n    class Inner(nn.Module): ...\n    return Inner\nInner = f()\n") as names,
        pytest.raises(UsageError, match="defined inside something else"),
    ):
        own_code.collect(names["Inner"])


def test_a_class_without_source_is_refused():
    """It was made by `exec` and its text is gone."""
    with notebook() as names:
        exec("class Gone:\n    def f(self): ...", names)
        with pytest.raises(UsageError, match="source of Gone cannot be found"):
            own_code.collect(names["Gone"])


def test_code_that_was_changed_on_the_way_is_not_run():
    """The name has its checksum."""
    with notebook(*CELLS) as names:
        _, module, text = own_code.portable(nets.trainer(nets.network(names["Mine"])))
    with pytest.raises(UsageError, match="not what its driver wrote"):
        own_code.load(module, text + "\nraise SystemExit")


def test_a_class_that_can_be_imported_goes_by_its_name():
    """Nothing is collected."""
    trainer = nets.trainer()
    assert own_code.portable(trainer) == (trainer, "", "")
    assert trainer.recipe()[1]["network"]["module"] == "tests.solvers.nets:Tiny"
