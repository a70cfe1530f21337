"""The benchmarks' name for `chicle_elastic.evaluate.datasets`, which the wheel has."""

from chicle_elastic.evaluate.datasets import BLOCK_ROWS, DataSet

__all__ = ["BLOCK_ROWS", "DataSet"]
