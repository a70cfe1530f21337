"""Targets are class labels where all are whole numbers or text, and real values otherwise."""

import numpy as np
import pytest

from chicle_elastic.chunks import convert_labels
from chicle_elastic.chunks.convert_labels import ClassCodes, Labels
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError


def coded(labels: ClassCodes | None, kept: list[Array]) -> list[int]:
    """The class codes of what was kept."""
    assert labels is not None
    table = dict(zip(labels.kept.tolist(), labels.codes.tolist(), strict=True))
    return [table[value] for block in kept for value in block.tolist()]


def test_text_becomes_codes_in_alphabetical_order_whatever_came_first() -> None:
    """Equal to LabelEncoder on the same labels, in random order over random blocks."""
    from sklearn.preprocessing import LabelEncoder

    rng = np.random.default_rng(0)
    targets = rng.choice(["setosa", "virginica", "versicolor", "été", "Z", "10", "9"], 200)
    labels = Labels(are_real=False)
    kept = [labels.keep(block, where="") for block in np.split(targets, [3, 50, 51, 120])]
    codes = labels.finish()
    assert codes is not None
    expected = LabelEncoder().fit(targets)
    assert list(codes.classes) == expected.classes_.tolist()
    assert coded(codes, kept) == expected.transform(targets).tolist()


def test_whole_numbers_stay_real_values_where_that_is_asked_for() -> None:
    """--regression."""
    labels = Labels(are_real=True)
    labels.keep(np.array([1.0, 2.0]), where="")
    assert labels.finish() is None
    with pytest.raises(DataError, match=r"^a.csv:3: the label 'x' is text, but --regression asks for real"):
        labels.keep(np.array(["x"]), where="a.csv:3")


def test_numbers_and_text_do_not_mix() -> None:
    """Between files too, in both orders."""
    labels = Labels(are_real=False)
    labels.keep(np.array([1.0]), where="")
    with pytest.raises(DataError, match=r"^b.csv:1: labels are text here, but were numbers before"):
        labels.keep(np.array(["x"]), where="b.csv:1")
    labels = Labels(are_real=False)
    labels.keep(np.array(["x"]), where="")
    with pytest.raises(DataError, match="labels are numbers here, but were text before"):
        labels.keep(np.array([1.0]), where="")


@pytest.mark.parametrize("dtype", [np.float64, np.str_])
def test_labels_without_end_are_refused(monkeypatch: pytest.MonkeyPatch, dtype: type) -> None:
    """Row numbers taken for labels would fill the memory; the bound is lowered here."""
    monkeypatch.setattr(convert_labels, "MAX_CLASSES", 10)
    labels = Labels(are_real=False)
    labels.keep(np.arange(10).astype(dtype), where="")
    with pytest.raises(DataError, match=r"^a.csv:11: more than 10 different labels so far; .*--regression"):
        labels.keep(np.arange(10, 12).astype(dtype), where="a.csv:11")


def test_numbers_beyond_2_to_the_53_are_real_values() -> None:
    """They are whole only because float64 has no fractions there."""
    labels = Labels(are_real=False)
    labels.keep(np.array([1e300]), where="")
    assert labels.finish() is None
