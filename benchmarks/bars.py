"""The benchmarks' name for `chicle_elastic.evaluate.bars`, which the wheel has."""

from chicle_elastic.evaluate.bars import HEADER, MISSED, Bar, Row

__all__ = ["HEADER", "MISSED", "Bar", "Row"]
