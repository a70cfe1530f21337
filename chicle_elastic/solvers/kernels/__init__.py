"""The compiled inner loops. The only place that imports numba; importing this package does, whole (`uninterrupted`)."""

import platform

import numpy as np

from chicle_elastic.uninterrupted import import_whole
from chicle_elastic.versions import warn_if_untried

warn_if_untried("Python", platform.python_version())
warn_if_untried("NumPy", np.__version__)  # numba refuses some, in a line of its own
import_whole("numba")
