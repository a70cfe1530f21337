"""joblib's backend "chicle": `with joblib.parallel_config("chicle"): GridSearchCV(ChicleSVM(), grid).fit(X, y)`.

joblib hands over one task after the other and asks for their results in order. The backend collects all tasks until the
first result is asked for; only then it knows which fits there are and what they share. `plan` says which jobs that
makes. They run on threads, or one after the other where they are for a cluster; the thread that asked scores the models
meanwhile. Tasks of anything else run on the same threads as they are.

joblib documents `ParallelBackendBase` as the interface for other backends. `pre_dispatch` is set to "all" here, for
tasks that are held back could not be seen.
"""

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import nullcontext
from typing import Any

from joblib.parallel import ParallelBackendBase
from threadpoolctl import threadpool_limits

from chicle_elastic import settings
from estimators.search.calls import SearchCall
from estimators.search.plan import Work, reason_against, works_of


class ChicleBackend(ParallelBackendBase):
    """See the module.

    Attributes:
        report: A line per group of fits so far, which says what they shared, or why nothing.
    """

    supports_sharedmem = True
    uses_threads = True
    supports_timeout = False

    def __init__(self, nesting_level: int | None = None, inner_max_num_threads: int | None = None, **_: Any) -> None:
        super().__init__(nesting_level=nesting_level, inner_max_num_threads=inner_max_num_threads)
        self.report: tuple[str, ...] = ()
        self._num_threads = 1
        self._round = _Round(self)
        self._lock = threading.Lock()

    @property
    def default_n_jobs(self) -> int:
        """As many as there are cores."""
        return settings.available_cores()

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Two at least: joblib runs the tasks of one by itself, and this backend would not see them."""
        return max(2, _num_threads(n_jobs))

    def configure(self, n_jobs: int | None = 1, parallel: Any = None, **_: Any) -> int:
        """Prepare for the tasks of `parallel`."""
        self.parallel = parallel
        self._num_threads = _num_threads(n_jobs)
        if parallel is not None:
            parallel.pre_dispatch = "all"
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Any, callback: Callable[[Any], Any] | None = None) -> "_Handle":
        """Take a task."""
        with self._lock:
            if self._round.is_closed:
                self._round = _Round(self)
            return self._round.add(func, callback)

    apply_async = submit
    """What joblib before 1.5 calls it."""

    def get_nested_backend(self) -> tuple[ParallelBackendBase, int]:
        """A search within a task shares its data, too, on the thread of the task."""
        return ChicleBackend(nesting_level=(self.nesting_level or 0) + 1), 1

    def run(self, handles: "list[_Handle]") -> None:
        """Run the tasks that were collected."""
        works, lines = works_of([call for each in handles for call in each.calls], self._num_threads)
        reasons = Counter(reason for each in handles for reason in each.reasons if reason)
        self.report += lines
        self.report += tuple(f"{number} fits share nothing: {reason}" for reason, number in reasons.items())
        _Run(handles, works, self._num_threads).run()


class _Handle:
    """A task of joblib: a batch of calls.

    Args:
        round_: That it belongs to.
        batch: As joblib made it; calling it runs it.
        callback: To be called when it is done.
    """

    def __init__(self, round_: "_Round", batch: Any, callback: Callable[[Any], Any] | None) -> None:
        self.round = round_
        self.batch = batch
        self.callback = callback
        self.result: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        items = getattr(batch, "items", None) or [(batch, (), {})]
        found = [SearchCall.of(*item) for item in items]
        calls = [call for call in found if call is not None]
        self.reasons = [reason_against(call) for call in calls]
        self.calls = calls if len(calls) == len(items) and not any(self.reasons) else []

    def get(self, timeout: float | None = None) -> Any:
        """The results of the batch; the first one of a round runs all of it."""
        self.round.run()
        if self.error is not None:
            raise self.error
        return self.result

    def finish(self) -> None:
        """Run the batch, with the models that were found if it is one of fits."""
        if self.calls:
            self.batch.items = [(call.score, (), {}) for call in self.calls]
        try:
            self.result = self.batch()
        except BaseException as error:
            self.error = error
            raise
        finally:
            self.is_done, self.calls = True, []
            self.batch = None
        if self.callback is not None:
            self.callback(self.result)


class _Round:
    """The tasks until a result is asked for."""

    def __init__(self, backend: ChicleBackend) -> None:
        self.is_closed = False
        self._backend = backend
        self._handles: list[_Handle] = []
        self._lock = threading.Lock()
        self._is_over = False

    def add(self, batch: Any, callback: Callable[[Any], Any] | None) -> _Handle:
        self._handles.append(_Handle(self, batch, callback))
        return self._handles[-1]

    def run(self) -> None:
        with self._lock:
            if self._is_over:
                return
            self.is_closed = self._is_over = True
            try:
                self._backend.run(self._handles)
            except BaseException as error:
                for handle in self._handles:
                    if not handle.is_done:
                        handle.error = error


class _Run:
    """Runs works and tasks, and scores each task as soon as its models are there."""

    def __init__(self, handles: list[_Handle], works: list[Work], num_threads: int) -> None:
        self._waiting = [handle for handle in handles if handle.calls]
        self._plain = [handle for handle in handles if not handle.calls]
        self._works = works
        self._num_threads = num_threads
        self._stop = threading.Event()

    def run(self) -> None:
        on_threads = [work for work in self._works if not work.needs_main_thread]
        num_threads = max(1, min(self._num_threads, len(on_threads) + len(self._plain)))
        # Each thread would have as many of BLAS as there are cores.
        blas_threads = max(1, settings.available_cores() // num_threads)
        with (
            threadpool_limits(blas_threads, user_api="blas") if num_threads > 1 else nullcontext(),
            ThreadPoolExecutor(num_threads, thread_name_prefix="chicle-search") as pool,
        ):
            open_: set[Future[None]] = set()
            try:
                open_.update(pool.submit(work.run, self._stop) for work in on_threads)
                open_.update(pool.submit(handle.finish) for handle in self._plain)
                for work in self._works:
                    if work.needs_main_thread:
                        work.run(self._stop)
                        self._score()
                while open_:
                    done, open_ = wait(open_, return_when=FIRST_COMPLETED)
                    for future in done:
                        future.result()
                    self._score()
            except BaseException:
                self._stop.set()  # jobs end at their next iteration
                for future in open_:
                    future.cancel()
                raise
        self._score()

    def _score(self) -> None:
        ready = [handle for handle in self._waiting if all(call.is_ready for call in handle.calls)]
        for handle in ready:
            self._waiting.remove(handle)
            handle.finish()


def _num_threads(n_jobs: int | None) -> int:
    """Threads that joblib's `n_jobs` means."""
    if n_jobs == 0:
        raise ValueError("n_jobs == 0 in Parallel has no meaning")
    cores = settings.available_cores()
    if n_jobs is None:
        return cores
    return max(1, cores + 1 + n_jobs) if n_jobs < 0 else n_jobs
