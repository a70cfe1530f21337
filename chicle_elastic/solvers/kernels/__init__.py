"""The compiled inner loops. The only place that imports numba; importing this package does, whole (`uninterrupted`)."""

from chicle_elastic.uninterrupted import import_whole

import_whole("numba")
