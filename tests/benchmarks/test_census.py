"""The census: what becomes of a table, what both sides minimise, and who is asked for a better model."""

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, load_wine
from sklearn.preprocessing import scale

from benchmarks.census import FAMILIES, LEAST_SHARE, Fit, compare, fit
from benchmarks.census_tables import prepared
from benchmarks.datasets import DataSet


def table(name: str) -> DataSet:
    """Classes as a table has them, or numbers."""
    X, y = load_wine(return_X_y=True) if FAMILIES[name].least_classes else load_diabetes(return_X_y=True)
    return DataSet("", "", scale(X), y.astype(str) if FAMILIES[name].least_classes else scale(y))


def test_the_last_column_of_few_classes_is_the_target_and_the_others_become_numbers() -> None:
    """A column of gaps goes, and rows with a gap; without classes the last column of numbers is the target."""
    numbers, letters = np.arange(50.0), np.array(["a", "b", "c", "d", "e"] * 10)
    frame = pd.DataFrame({"x": numbers, "g": np.nan, "kind": letters, "y": numbers % 2, "z": numbers**2})
    data = prepared("t", frame.assign(x=frame["x"].where(frame["x"] > 0)))
    assert data is not None
    assert (data.X.shape, sorted(set(data.y))) == ((49, 7), ["0.0", "1.0"])
    data = prepared("t", frame[["x", "z"]])
    assert data is not None
    assert (data.X.shape, data.y.dtype, FAMILIES["svr"].suits(data)) == ((50, 1), np.float64, True)
    assert prepared("t", frame[:39]) is None
    assert prepared("t", frame[["z"]]) is None


@pytest.mark.parametrize("name", FAMILIES)
def test_both_sides_minimise_the_same_function(name: str) -> None:
    """Each with a thousandth of its `tol`."""
    ours, peer = (fit(name, side, table(name), 1e-3) for side in ("ours", "peer"))
    assert ours.objective == pytest.approx(peer.objective, rel=1e-4)


class Scripted:
    """Fits whose objective depends on the share of `tol`, and which take a second."""

    def __init__(self, enough: float) -> None:
        self.enough = enough

    def fit(self, name: str, side: str, data: DataSet, share: float = 1.0) -> Fit:
        """The peer is too far above until its share is small enough."""
        return Fit(1.0, 1.0 if side == "ours" or share < self.enough else 1.1, share=share)


@pytest.mark.parametrize(("enough", "share"), [(2.0, 1.0), (0.5, 0.1), (0.05, 0.01), (0.0, LEAST_SHARE)])
def test_a_side_that_ends_above_the_other_is_asked_for_a_smaller_tol(enough: float, share: float) -> None:
    """Until it is there, or that is hopeless."""
    cell = compare(Scripted(enough), "hinge", table("hinge"))  # type: ignore[arg-type]
    assert (cell.ours.share, cell.peer.share) == (1.0, pytest.approx(share))
