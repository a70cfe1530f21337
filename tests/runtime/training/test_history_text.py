"""The records of a job as text: what a newcomer is sent, and what comes out in the end."""

import pytest

from chicle_elastic.errors import ProtocolError
from chicle_elastic.monitoring.records import IterationRecord
from chicle_elastic.runtime.training.history_text import HistoryText


def record(iteration, gap=0.5):
    """A record."""
    return IterationRecord(
        iteration=iteration,
        epochs=1.5 * iteration,
        time_s=0.1 * iteration,
        num_tasks=2,
        num_chunks={"n0": 3, "n1": 4},
        samples=100,
        figures={"duality_gap_estimate": gap},
        events=("n1 joins",) if iteration == 2 else (),
    )


def as_values(records):
    """Records as plain values: JSON makes lists of tuples."""
    return [(r.iteration, r.epochs, r.time_s, dict(r.num_chunks), dict(r.figures), list(r.events)) for r in records]


def test_a_newcomer_with_the_latest_records_gets_all_of_them_in_the_end():
    """Equal to those of the task that was there from the start, also for a newcomer of a newcomer."""
    history = [record(iteration) for iteration in range(1, 30)]
    first, second, third = HistoryText(), HistoryText(), HistoryText()
    first.keep(history[:10])
    first.keep(history)
    second.take(first.text(1))
    third.take(second.text(1))
    for archive in (first, second, third):
        assert as_values(archive.complete(history[-3:])) == as_values(history)


def test_what_others_know_better_takes_the_place_of_what_was_here():
    """A task that missed a certificate has another record of that iteration than the others."""
    archive, other = HistoryText(), HistoryText()
    archive.keep([record(1), record(2)])
    other.keep([record(1), record(2, gap=0.1), record(3)])
    archive.forget(2)
    archive.take(other.text(2))
    assert [dict(r.figures)["duality_gap_estimate"] for r in archive.complete([])] == [0.5, 0.1, 0.5]


def test_a_copy_does_not_grow_with_its_original():
    """A checkpoint is written beside the training."""
    archive = HistoryText()
    archive.keep([record(1)])
    copy = archive.copy()
    archive.keep([record(1), record(2)])
    assert len(copy.complete([])) == 1


def test_text_without_numbers_is_refused():
    """When it comes."""
    with pytest.raises(ProtocolError, match="are malformed"):
        HistoryText().take(b"no number")


@pytest.mark.parametrize("text", [b"1 no JSON", b'1 {"iteration": 1}', b"1 []"])
def test_text_that_is_no_record_is_refused(text):
    """When it is read."""
    archive = HistoryText()
    archive.take(text)
    with pytest.raises(ProtocolError, match=r"record of iteration 1 .* is malformed"):
        archive.complete([])
