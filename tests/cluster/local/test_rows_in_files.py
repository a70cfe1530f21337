"""A submitted fit whose data is larger than the memory that its nodes may take for chunks."""

import os
import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from estimators import ChicleSVM
from tests.cluster.cluster_harness import LocalAgents
from tests.estimators.test_folder import digits_folder

pytestmark = pytest.mark.slow


def test_nodes_train_on_rows_that_stay_in_the_files_of_a_folder(tmp_path: Path) -> None:
    """The chunks take more than both nodes have; with --rows-in-files they need memory for duals alone."""
    folder, X, y = digits_folder(tmp_path / "digits")
    assert folder.size_bytes > 2 * 120_000
    (tmp_path / "nodes").mkdir()
    fit = ("-m", "estimators.fit_task", "--train", str(folder.path), "--out", str(tmp_path / "out"))
    script = (*fit, "--rows-in-files", "--tol", "1e-4")
    with LocalAgents(tmp_path / "nodes", nodes="2:2", script=script, options=("--memory", "120000")) as cluster:
        agents = [cluster.start("n0"), cluster.start("n1")]
        assert [agent.wait_for_end() for agent in agents] == [0, 0], agents[0].output()
    model = ChicleSVM.load(tmp_path / "out" / "model.npz")
    assert {record.num_tasks for record in model.history_} == {2}
    assert np.max(model.duality_gap_) <= 1e-4
    assert model.score(X, y) > 0.9


def test_a_node_with_another_folder_is_refused(tmp_path: Path) -> None:
    """Of the same shape: its rows would come below the duals of those of the job."""
    for name, form in (("n0", np.asarray), ("n1", np.fliplr)):
        (tmp_path / name).mkdir()
        digits_folder(tmp_path / name / "digits", form=form)
    (tmp_path / "nodes").mkdir()
    fit = ("-m", "estimators.fit_task", "--train", "digits", "--out", str(tmp_path / "out"), "--rows-in-files")
    script = (*fit, "--tol", "0", "--max-iter", "1000000")
    with LocalAgents(tmp_path / "nodes", nodes="1:2", script=script) as cluster:
        first = cluster.start("n0", before=partial(os.chdir, tmp_path / "n0"))
        first.wait_for("iteration")
        other = cluster.start("n1", before=partial(os.chdir, tmp_path / "n1"))
        assert other.wait_for_end() == 1
        assert re.search(r"data is \S+ at n\d and \S+ at n\d", other.output())
        first.wait_for("iteration", after=len(first.events()))  # which trains on
