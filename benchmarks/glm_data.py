"""The ten data sets of the benchmark of linear models: four real ones, and six that are shaped like real ones."""

from functools import partial
from pathlib import Path

from benchmarks.datasets import DataSet, Recipe, load_recipe
from benchmarks.glm_real import FILES, load_real, missing
from benchmarks.glm_shapes import click_log, few_binary, tfidf_text
from benchmarks.svm_data import higgs_shaped, mnist_shaped

REAL = ("a9a", "digits", "fashion", "higgs-real")
SHAPED = {
    "click-10k": Recipe("click log, 2^18 sparse", partial(click_log, num_features=1 << 18), 10_000, 500),
    "click-500k": Recipe("click log, 2^20 sparse", partial(click_log, num_features=1 << 20), 500_000, 2_000),
    "text": Recipe("TF-IDF text, 50k sparse", tfidf_text, 20_000, 500),
    "few-binary": Recipe("few binary, 68 sparse", few_binary, 11_000, 1_000),
    "higgs": Recipe("HIGGS-shaped, 28 dense", higgs_shaped, 200_000, 5_000),
    "mnist": Recipe("MNIST-shaped, 784 dense", mnist_shaped, 50_000, 500),
}
NAMES = (*REAL, *SHAPED)


def load(name: str, folder: Path, real: Path, *, quick: bool) -> DataSet | str:
    """A data set, or a line that says why it cannot be had.

    Args:
        name: One of `NAMES`.
        folder: Cache of what is generated.
        real: Folder with the real data.
        quick: Few rows.
    """
    if name in SHAPED:
        return load_recipe(name, SHAPED[name], folder, quick=quick)
    if absent := missing(name, real):
        return f"{name} is left out: there is no {absent[0]} (say --real DIR)"
    return load_real(name, real, quick=quick)


assert set(REAL) == set(FILES)
