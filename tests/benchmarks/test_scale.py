"""The benchmark of the control plane, at a size that takes no time."""

from benchmarks import scale


def test_a_job_is_followed_to_its_end() -> None:
    """All steps are measured, and the chunks of the lost node are on their way to others."""
    job = scale.ScaledJob(5, 60)
    job.run()
    assert {"first plan", "snapshot", "join: commit", "notice: commit", "loss: sent to all"} <= job.times_ms.keys()
    assert all(size > 0 for size in job.sizes.values())
    ledger = job._log.scheduler.ledger
    assert ledger.num_chunks == 60
    assert 0 < ledger.num_missing < 60
    assert len(ledger.node_chunks) == 4
