"""A component on a real Slurm: TorchX submits the anchor, the anchor submits the members."""

from pathlib import Path

import pytest

from chicle_elastic.cluster.net.event_file import read_events
from estimators import ChicleSVM
from tests.harness.training import write_data
from tests.slurm.private_slurm import PrivateSlurm, reason_to_skip
from tests.timeouts import comes
from tests.torchx.command import torchx

pytest.importorskip("torchx.specs", reason="needs torchx")
REASON = reason_to_skip(has_accounting=True)  # TorchX asks sacct for the state of a job


@pytest.mark.slow
@pytest.mark.skipif(REASON is not None, reason=str(REASON))
def test_the_anchor_submits_the_members(environment: dict[str, str], tmp_path: Path) -> None:
    """SUCCEEDED, two members trained as tasks of an array, and nothing is left in the queue or the folder."""
    write_data(tmp_path / "data.npz")
    out = tmp_path / "out"
    options = ["-j", "2", "--train", str(tmp_path / "data.npz"), "--out", str(out), "--cpu", "1", "--memMB", "800"]
    options += ["--member_options", "--host 127.0.0.1 --sbatch=--partition=spot", "--", "--tol", "1e-4"]
    with PrivateSlurm(tmp_path / "slurm", 3, has_accounting=True) as slurm:
        for_slurm = {**environment, "SLURM_CONF": slurm.environment["SLURM_CONF"]}
        command = ["run", "-s", "slurm", "-cfg", "partition=main,time=10", "--workspace=", "--wait", "chicle.svm"]
        try:
            assert "SUCCEEDED" in torchx(for_slurm, *command, *options, cwd=tmp_path, limit_s=200)
        except AssertionError as error:
            # The nightly cannot read what Slurm 22.05 says of a job that waits; it has submitted the anchor before.
            if "KeyError: 'job_resources'" not in str(error):
                raise
        assert comes(lambda: not slurm.run("squeue", "-h").strip(), 120, poll_s=0.5), slurm.run("squeue")
        partitions = slurm.run("sacct", "-n", "-X", "-P", "-o", "Partition,State").split()
        assert partitions.count("main|COMPLETED") == 1
        assert partitions.count("spot|COMPLETED") >= 2
    assert ChicleSVM.load(out / "model.npz").duality_gap_ <= 1e-4
    members = [len(event["seconds"]) for event in read_events(out / "nodes") if event["kind"] == "iteration"]
    assert max(members) == 2
    assert not list(out.glob(".run-*"))
