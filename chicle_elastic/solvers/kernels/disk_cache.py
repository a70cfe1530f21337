"""The entries of the kernel cache on disk: an error of the disk costs a compilation and never a fit.

numba raises every OSError of its cache, and runs whatever machine code an entry holds. An entry that a power failure
has filled with zeros could end the process. Two processes that save at a time can leave an index that names the entry
of another signature. So an entry carries its key and a digest here, and one that does not fit is compiled again.
"""

import contextlib
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
from numba.core.caching import FunctionCache, IndexDataCacheFile

from chicle_elastic.solvers.kernel_cache import cache_dir, tell_not_kept

DIGEST_BYTES = hashlib.sha256().digest_size


def cache_of(function: Callable[..., Any]) -> "KernelCache | None":
    """Make the cache of a kernel; None where no folder can be written.

    numba takes its folder from one global, which is set for just this moment. Where that folder cannot be written any
    more, numba turns to others, which do not tell the sources of a kernel apart (`cache_dir`).
    """
    folder = cache_dir()
    if folder is None:
        return None
    previous = numba.config.CACHE_DIR
    numba.config.CACHE_DIR = str(folder)
    try:
        cache = KernelCache(function)
        if not Path(cache.cache_path).is_relative_to(folder):
            raise OSError(f"{folder} cannot be written any more")
    except (OSError, RuntimeError) as error:
        tell_not_kept(error)
        return None
    finally:
        numba.config.CACHE_DIR = previous
    return cache


class KernelCache(FunctionCache):
    """The cache of one kernel."""

    def __init__(self, function: Any) -> None:
        super().__init__(function)
        self._cache_file = CheckedFile(
            cache_path=self.cache_path,
            filename_base=self._impl.filename_base,
            source_stamp=self._impl.locator.get_source_stamp(),
        )

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Load the machine code for a signature; None where it has to be compiled.

        numba's own method first has the compiler learn all types of Python and NumPy, which takes longer than all the
        rest.
        """
        try:
            return self._load_overload(sig, target_context)
        except Exception:  # unpickling a damaged file raises errors of every class
            with contextlib.suppress(OSError):
                self.flush()  # numba reads the index before it saves an entry
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Save machine code; where that fails, the next process compiles it again."""
        try:
            super().save_overload(sig, data)
        except Exception as error:  # an OSError, or what a damaged index raises that could not be replaced
            tell_not_kept(error)


class CheckedFile(IndexDataCacheFile):
    """The index and the entries of one kernel: an entry is its key and its machine code, and a digest of both."""

    def save(self, key: Any, data: Any) -> None:
        """Save an entry."""
        super().save(key, (key, data))

    def load(self, key: Any) -> Any:
        """Load an entry; None when there is none for this key."""
        saved_key, data = super().load(key) or (None, None)
        return data if saved_key == key else None

    def _dump(self, obj: Any) -> bytes:
        content: bytes = super()._dump(obj)
        return content + hashlib.sha256(content).digest()  # unpickling stops before it

    def _load_data(self, name: str) -> Any:
        content = Path(self._data_path(name)).read_bytes()
        if hashlib.sha256(content[:-DIGEST_BYTES]).digest() != content[-DIGEST_BYTES:]:
            raise ValueError(f"{name} is damaged")
        return super()._load_data(name)
