"""The benchmarks' name for `chicle_elastic.evaluate.shapes`, which the wheel has."""

from chicle_elastic.evaluate.shapes import (
    NUM_COUNTS,
    click_log,
    few_binary,
    grades,
    higgs,
    higgs_shaped,
    mnist_shaped,
    tfidf_text,
    topics,
)

__all__ = [
    "NUM_COUNTS",
    "click_log",
    "few_binary",
    "grades",
    "higgs",
    "higgs_shaped",
    "mnist_shaped",
    "tfidf_text",
    "topics",
]
