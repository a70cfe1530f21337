"""Records, histories, changes of the membership and ledgers: columns, tables, and what survives a pickle."""

import pickle

import pandas as pd
import pytest

from chicle_elastic.errors import UsageError
from chicle_elastic.ids import ChunkId, NodeId
from chicle_elastic.monitoring.history import History, TransitionTable
from chicle_elastic.monitoring.job_ledger import JobLedger
from chicle_elastic.monitoring.records import IterationRecord, Transition
from chicle_elastic.values import ChunkAccount

A, B = NodeId("a"), NodeId("b")


def make_history(num_iterations: int = 4) -> History:
    """A job that starts on n0; n1 joins for iteration 3; the gap is known in every second iteration."""
    history = History()
    for iteration in range(1, num_iterations + 1):
        joined = iteration >= 3
        figures = {"objective": 1.0 / iteration}
        if iteration % 2 == 0:
            figures["duality_gap"] = 0.5 / iteration
        history.append(
            IterationRecord(
                iteration=iteration,
                epochs=float(iteration),
                time_s=0.25 * iteration,
                num_tasks=2 if joined else 1,
                samples=100,
                num_chunks={"n0": 5, "n1": 3} if joined else {"n0": 8},
                figures=figures,
                events=("n1 joined with <3> chunks", "n0 gave 3 of 8") if iteration == 3 else (),
            )
        )
    return history


def test_a_history_becomes_a_data_frame():
    """One row per iteration, one column per name, in that order; its values can go into JSON as they are."""
    history = make_history()
    frame = pd.DataFrame(history.to_dict())
    assert {type(value) for column in history.to_dict().values() for value in column} == {int, float, str}
    assert tuple(frame.columns) == history.column_names
    assert frame["num_chunks.n0"].tolist() == [8, 8, 5, 5]
    assert frame.loc[2, "events"] == "n1 joined with <3> chunks; n0 gave 3 of 8"
    assert frame["duality_gap"].isna().tolist() == [True, False, True, False]
    expected = "History(4 iterations, 1 to 2 tasks, 4 epochs, 1 s, objective=0.25, duality_gap=0.125)"
    assert repr(make_history()) == expected


def test_an_empty_history_has_columns_and_words():
    """Before the first iteration is over, nothing may break."""
    history = History()
    assert repr(history) == "History(no iterations)"
    assert history.column("time_s").tolist() == []
    assert history.to_dict()["iteration"] == []
    assert "no iterations" in history._repr_html_()


def test_the_notebook_table_is_short_and_escaped():
    """First and last rows, the number of hidden ones between, and no markup from event texts."""
    table = make_history(100)._repr_html_()
    assert table.count("<tr>") == 1 + 3 + 1 + 5
    assert "92 more iterations" in table
    assert "&lt;3&gt;" in table
    assert "<3>" not in table
    assert "nan" not in table


@pytest.mark.parametrize("num_iterations", [1, 9])
def test_the_notebook_table_shows_a_short_history_whole(num_iterations):
    """Hiding one row would save nothing."""
    table = make_history(num_iterations)._repr_html_()
    assert table.count("<tr>") == 1 + num_iterations
    assert "more iterations" not in table


def test_a_record_does_not_change_when_its_maker_goes_on():
    """The runtime reuses its counters."""
    num_chunks = {"n0": 8}
    record = IterationRecord(iteration=1, epochs=1.0, time_s=0.1, num_tasks=1, samples=10, num_chunks=num_chunks)
    num_chunks["n0"] = 5
    assert record.num_chunks == {"n0": 8}


@pytest.mark.parametrize("name", ["samples", "events", "num_chunks.n0"])
def test_a_figure_cannot_take_the_name_of_a_column(name):
    """Otherwise one of the two would be hidden."""
    with pytest.raises(UsageError, match=f"figures named .*{name}"):
        IterationRecord(iteration=1, epochs=1.0, time_s=0.1, num_tasks=1, samples=10, figures={name: 1.0})


def make_transition(**fields: object) -> Transition:
    """A change of the membership, whose phases take different times."""
    phases = ("detect_ms", "ahead_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms", "stall_ms")
    times = dict(zip(phases, (0.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0), strict=True))
    given = {"iteration": 1, "round": 2, "members": ("n0",), "reasons": ("n1 leaves",)}
    return Transition(**{**given, **times, **fields})


def test_changes_of_the_membership_are_the_tuple_that_they_were() -> None:
    """Equal, sliced, pickled."""
    one, other = make_transition(), make_transition(round=3)
    table = TransitionTable([one, other])
    assert table == (one, other)
    assert table[1:] == (other,)
    assert pickle.loads(pickle.dumps(table)) == table
    assert isinstance(pickle.loads(pickle.dumps(table)), TransitionTable)


def test_columns_of_changes_are_plain_values_for_a_data_frame() -> None:
    """One row per change; an empty table has the columns."""
    first = make_transition(members=("n0", "n1"), reasons=("n1 joins", "n2 leaves"))
    frame = pd.DataFrame(TransitionTable([first, make_transition(stall_ms=None)]).to_dict())
    assert frame.loc[0, "reasons"] == "n1 joins; n2 leaves"
    assert frame.loc[0, "members"] == "n0, n1"
    assert frame["stall_ms"].isna().tolist() == [False, True]
    assert pd.DataFrame(TransitionTable().to_dict()).columns.tolist() == frame.columns.tolist()


def test_a_notebook_shows_what_changed_first_and_no_phase_that_never_took_time() -> None:
    """Text is escaped."""
    shown = TransitionTable([make_transition(reasons=("<n1> joins",))])._repr_html_()
    heads = shown.partition("</thead>")[0]
    assert heads.index("reasons") < heads.index("stall_ms") < heads.index("move_ms")
    assert "detect_ms" not in heads
    assert "&lt;n1&gt; joins" in shown


def make_ledger() -> JobLedger:
    """Two chunks: one stayed, one moved and was started afresh."""
    return JobLedger(
        [
            ChunkAccount(chunk=ChunkId(1), rows=5, owner=B, iterations={A: 2, B: 3}, replays=1),
            ChunkAccount(chunk=ChunkId(0), rows=7, owner=A, iterations={A: 6}, replays=0),
        ]
    )


def test_a_ledger_is_a_sequence_by_chunk() -> None:
    """Slices are ledgers, equal ones compare equal, and a pickle is one."""
    ledger = make_ledger()
    assert [account.chunk for account in ledger] == [0, 1]
    assert ledger[1].owner == B
    assert ledger[:1] == JobLedger([ledger[0]])
    assert pickle.loads(pickle.dumps(ledger)) == ledger
    assert len(ledger) == 2
    assert ledger.replayed == {1: 1}
    assert repr(ledger) == "JobLedger(2 chunks, 12 samples, 2 nodes, 1 chunks moved, 1 replayed)"


def test_columns_of_a_ledger_have_a_count_for_every_node() -> None:
    """0 where it never had the chunk."""
    assert make_ledger().to_dict() == {
        "chunk": [0, 1],
        "rows": [7, 5],
        "owner": ["a", "b"],
        "replays": [0, 1],
        "iterations.a": [6, 2],
        "iterations.b": [0, 3],
    }
