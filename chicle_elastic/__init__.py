"""Chicle: elastic training that moves the data, not the tasks.

Importing this package loads no torch, opens nothing and sets nothing (STYLE rule 15).
"""

__version__ = "0.1.0"

__all__ = ["__version__"]
