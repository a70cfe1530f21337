"""Images for local SGD: sets in two parts, and `letters`, which is made here.

`letters` are A to J in the fonts that matplotlib brings along, turned, sheared, scaled and moved, behind noise and a
patch that hides a part.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NUM_MADE, NUM_TEST = 30_000, 5_000
FONTS = ("DejaVu", "STIXGeneral", "cmr", "cmss", "cmtt", "cmti", "cmb1")


class ImageData(NamedTuple):
    """A data set in two parts; images of shape (n, height, width) or (n, channels, height, width)."""

    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def letters() -> ImageData:
    """See the top of the module; 28 x 28, uint8."""
    import matplotlib
    from PIL import Image, ImageDraw, ImageFont

    folder = Path(matplotlib.get_data_path()) / "fonts/ttf"
    fonts = [ImageFont.truetype(str(path), 40) for path in sorted(folder.glob("*.ttf")) if path.name.startswith(FONTS)]
    glyphs = []
    for font in fonts:
        for code in range(10):
            glyph = Image.new("L", (64, 64))
            ImageDraw.Draw(glyph).text((32, 32), chr(ord("A") + code), fill=255, font=font, anchor="mm")
            glyphs.append(glyph)
    rng = np.random.default_rng(0)
    count = NUM_MADE + NUM_TEST
    X, y = np.empty((count, 28, 28), np.uint8), rng.integers(0, 10, count)
    for index in range(count):
        glyph = glyphs[10 * int(rng.integers(len(fonts))) + int(y[index])]
        angle, scales, shear = rng.uniform(-0.5, 0.5), rng.uniform(1.6, 2.8, 2), rng.uniform(-0.3, 0.3)
        turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        (a, b), (d, e) = matrix = turn @ np.array([[scales[0], shear], [0.0, scales[1]]])
        c, f = np.array([32, 32]) - matrix @ (np.array([14, 14]) + rng.uniform(-4, 4, 2))
        drawn = glyph.transform((28, 28), Image.Transform.AFFINE, (a, b, c, d, e, f), Image.Resampling.BILINEAR)
        image = np.asarray(drawn, np.float64) * rng.uniform(0.4, 1) + rng.normal(0, 50, (28, 28)) + rng.uniform(0, 60)
        top, left = rng.integers(0, 22, 2)
        image[top : top + 6, left : left + 6] = rng.uniform(0, 255)
        X[index] = np.clip(image, 0, 255)
    return ImageData(X[:NUM_MADE], y[:NUM_MADE], X[NUM_MADE:], y[NUM_MADE:])


def time_to(goal: float, scores: Sequence[float], times: Sequence[float]) -> float:
    """When the accuracy is reached, between two epochs by a straight line; infinite where it is not.

    Args:
        goal: Test accuracy.
        scores: That after each epoch; before the first one it is 0.1, that of guesses.
        times: At the end of each epoch, in any unit.
    """
    before, before_time = 0.1, 0.0
    for score, time in zip(scores, times, strict=True):
        if score >= goal:
            return before_time + (time - before_time) * (goal - before) / (score - before)
        before, before_time = score, time
    return math.inf


class EpochScores:
    """Callback: the accuracy after each epoch, until that is enough.

    Args:
        X, y: Of the test.
        is_enough: Told all accuracies so far.
    """

    def __init__(self, X: np.ndarray, y: np.ndarray, is_enough: Callable[[list[float]], bool]) -> None:
        self.scores: list[float] = []
        self._X, self._y, self._is_enough = X, y, is_enough

    def setup(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def teardown(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def on_fit_task_begin(self, estimator: object, context: object) -> None:
        """Nothing to do."""

    def on_fit_task_end(self, estimator: Any, context: Any, *, fitted_estimator: Any = None) -> bool | None:
        """Score an epoch."""
        if context.task_name != "epoch":
            return None
        self.scores.append(float(fitted_estimator.score(self._X, self._y)))
        return self._is_enough(self.scores)
