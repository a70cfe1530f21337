"""What the targets of a stream of blocks are: class labels or real values, which only the last block decides.

Until then every target is kept as one float64: a numeric label as itself, a text label as its number in the order of
first appearance. At the end the distinct labels, sorted, are the classes, and the code of a class is its position among
them, as in scikit-learn's `LabelEncoder`.
"""

from dataclasses import dataclass

import numpy as np

from chicle_elastic.chunks.readers.checks import LARGEST_EXACT
from chicle_elastic.chunks.views import Array
from chicle_elastic.errors import DataError

MAX_CLASSES = 65_536
"""More distinct labels are taken for real values or row numbers; without a bound they would fill the memory."""


@dataclass(frozen=True, slots=True)
class ClassCodes:
    """How the targets that were kept become class codes."""

    classes: tuple[int | str, ...]  # the labels, sorted; the code of a label is its position
    kept: Array  # what `Labels.keep` made of each label, ascending; ndarray of shape (num_classes,), float64
    codes: Array  # the code of each of `kept`, ndarray of shape (num_classes,), int32

    def recode(self, kept: Array) -> Array:
        """The class codes of targets that were kept, ndarray of the shape of `kept`, int32."""
        return self.codes[np.searchsorted(self.kept, kept)]


class Labels:
    """Takes the targets block by block and says at the end what they are."""

    def __init__(self, *, are_real: bool) -> None:
        self._are_real = are_real
        self._may_be_classes = not are_real
        self._is_text: bool | None = None
        self._numbers: Array = np.zeros(0)
        self._texts: dict[str, int] = {}

    def keep(self, targets: Array, *, where: str) -> Array:
        """One float64 per target, to be stored until `finish` says what they are. Raises DataError for text where real
        values are asked for, text and numbers mixed, or too many classes."""
        is_text = targets.dtype.kind == "U"
        if is_text and self._are_real:
            raise DataError(f"{where}: the label {str(targets[0])!r} is text, but --regression asks for real values")
        if self._is_text not in (None, is_text):
            raise DataError(
                f"{where}: labels are {'text' if is_text else 'numbers'} here, but were "
                f"{'numbers' if is_text else 'text'} before; make them all of one kind"
            )
        self._is_text = is_text
        if is_text:
            kept = self._keep_texts(targets)
        else:
            kept = targets
            self._note_numbers(targets)
        num_classes = len(self._texts) or len(self._numbers)
        if num_classes > MAX_CLASSES:
            raise DataError(
                f"{where}: more than {MAX_CLASSES} different labels so far; these look like real values or row "
                "numbers: pass --regression to keep real values, or check which column is the label"
            )
        return kept

    def finish(self) -> ClassCodes | None:
        """The class codes, or None where the targets are real values."""
        if self._is_text:
            classes = sorted(self._texts)
            codes = np.empty(len(classes), dtype=np.int32)
            codes[[self._texts[label] for label in classes]] = np.arange(len(classes))
            return ClassCodes(tuple(classes), np.arange(len(classes), dtype=np.float64), codes)
        if not self._may_be_classes:
            return None
        codes = np.arange(len(self._numbers), dtype=np.int32)
        return ClassCodes(tuple(int(label) for label in self._numbers), self._numbers, codes)

    def _keep_texts(self, targets: Array) -> Array:
        labels, positions = np.unique(targets, return_inverse=True)
        numbers = [self._texts.setdefault(str(label), len(self._texts)) for label in labels]
        return np.array(numbers, dtype=np.float64)[positions]

    def _note_numbers(self, targets: Array) -> None:
        if not self._may_be_classes:
            return
        if ((targets != np.floor(targets)) | (np.abs(targets) >= LARGEST_EXACT)).any():
            self._may_be_classes = False
            self._numbers = np.zeros(0)
        else:
            self._numbers = np.union1d(self._numbers, targets)
