"""Changes of the membership as a tuple, as columns and as a table."""

import pickle

import pandas as pd

from chicle_elastic.monitoring.records import Transition
from chicle_elastic.monitoring.transition_table import TransitionTable


def make_transition(**fields: object) -> Transition:
    """A join."""
    times = dict.fromkeys(
        ("detect_ms", "ahead_ms", "pause_ms", "rendezvous_ms", "move_ms", "group_ms", "first_ms"), 1.5
    )
    given = {"iteration": 7, "round": 2, "members": ("n0", "n1"), "reasons": ("n1 joins", "n2 leaves")}
    return Transition(**{**given, **times, "detect_ms": 0.0, "stall_ms": 12.25, **fields})


def test_it_is_the_tuple_that_it_was() -> None:
    """Equal, sliced, pickled."""
    one, other = make_transition(), make_transition(round=3)
    table = TransitionTable([one, other])
    assert table == (one, other)
    assert table[1:] == (other,)
    assert pickle.loads(pickle.dumps(table)) == table
    assert isinstance(pickle.loads(pickle.dumps(table)), TransitionTable)


def test_its_columns_are_plain_values_for_a_data_frame() -> None:
    """One row per change; an empty table has the columns."""
    frame = pd.DataFrame(TransitionTable([make_transition(), make_transition(stall_ms=None)]).to_dict())
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
