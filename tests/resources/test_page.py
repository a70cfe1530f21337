"""The examples of the page on nodes run as they stand there."""

import re

import numpy as np

from chicle_elastic import LocalCluster
from estimators import ChicleSVM
from tests.house.sources import ROOT

PAGE = ROOT / "docs/how-to/nodes.md"


def test_the_examples_of_the_page_run() -> None:
    """A cluster (which starts nothing before its first fit), a fit by a schedule, a manager of the user's."""
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    assert isinstance(names["cluster"], LocalCluster)
    svm = names["svm"]
    assert isinstance(svm, ChicleSVM)
    assert svm.history_.column("num_tasks")[0] == 2
    X, y = np.asarray(names["X"]), np.asarray(names["y"])
    with_pool = ChicleSVM(runtime=names["runtime"], C=0.1).fit(X, y)
    assert with_pool.history_.column("num_tasks")[0] == 1
