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
from numba.core.caching import CompileResultCacheImpl, FunctionCache, IndexDataCacheFile, _CacheLocator

from chicle_elastic.solvers.kernel_cache import cache_dir, tell_not_kept

DIGEST_BYTES = hashlib.sha256().digest_size


def cache_of(function: Callable[..., Any]) -> "KernelCache | None":
    """Make the cache of a kernel; None where no folder can be written."""
    folder = cache_dir()
    if folder is None:
        return None
    try:
        cache = KernelCache(function)
        if not Path(cache.cache_path).is_relative_to(folder):
            raise OSError("NUMBA_CACHE_LOCATOR_CLASSES names another place")
    except (OSError, RuntimeError) as error:
        tell_not_kept(error)
        return None
    return cache


class PlaceByContent(_CacheLocator):
    """Place a kernel by its sources and not by their path, so that each checkout and environment finds it compiled."""

    def __init__(self, function: Callable[..., Any], file: str) -> None:
        self._function, self._file = function, Path(file)

    @classmethod
    def from_function(cls, function: Callable[..., Any], file: str) -> "PlaceByContent":
        """Make the place of a kernel, with its folder."""
        place = cls(function, file)
        place.ensure_cache_path()
        return place

    def get_cache_path(self) -> str:
        """Return the folder. Code for Intel's vector library, where it is installed, runs nowhere else."""
        return f"{cache_dir()}/numba-{numba.__version__}{'-svml' * bool(numba.config.USING_SVML)}"

    def get_source_stamp(self) -> str:
        """Return a digest of the kernel's file: the folder's name is a digest of the files of the package."""
        return hashlib.sha256(self._file.read_bytes()).hexdigest()

    def get_disambiguator(self) -> str:
        """Tell kernels of one name apart by their lines."""
        return str(self._function.__code__.co_firstlineno)


class ByContent(CompileResultCacheImpl):
    """Keep kernels in one place only; numba would turn to others where it cannot be written."""

    _locator_classes = (PlaceByContent,)


class KernelCache(FunctionCache):
    """The cache of one kernel."""

    _impl_class = ByContent

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
