"""What the environment says, read here and nowhere else (docs/style 11: argument, then environment, then default).

CHICLE_CACHE_DIR      folder for compiled kernels; default: the user's cache folder / "chicle"
CHICLE_CONTROL        address of the socket of the agent that started this task; set by the agent
CHICLE_MAX_NODES      largest number of nodes that the job of this task may have; set by the agent
CHICLE_METADATA_URL   metadata server that --notices asks, instead of the one of the cloud
CHICLE_RDMA           name of the RDMA device for chunks, or "off"; default: the one that fits, if there is one.
                      "model", or "NAME,model": the model goes by RDMA as well
CHICLE_SECRET         the job secret itself, in hex digits, where no file can be mounted; CHICLE_SECRET_FILE is better
CHICLE_SECRET_FILE    file with the job secret of a cluster, for the launcher and for plain torchrun
CHICLE_WAITS          "off" for no lines about long waits, such as for kernels that are compiled (see `waits`)
KUBERNETES_SERVICE_HOST, KUBERNETES_SERVICE_PORT_HTTPS    set by Kubernetes in its pods: where its API server is
LOKY_MAX_CPU_COUNT    joblib's limit on the cores of this process
OMP_NUM_THREADS       scikit-learn's limit on threads; joblib sets it in its worker processes, so that
                      GridSearchCV(n_jobs=2) does not start twice the threads that the machine has
SLURM_JOB_ID          set by Slurm: this process is in a job of it
"""

import atexit
import contextlib
import functools
import math
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from chicle_elastic.cgroups import PROC, cpu_quota
from chicle_elastic.surroundings import is_folder_gone

MODEL = "model"  # in CHICLE_RDMA: not chunks alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of this process that are no argument of any function."""

    # folder for what can be computed again, such as compiled kernels; None when the user has no home
    cache_dir: Path | None = None
    # the job secret in hex digits; None when CHICLE_SECRET is not set
    secret: str | None = field(default=None, repr=False)
    secret_file: Path | None = None  # file of the job secret of a cluster; None when CHICLE_SECRET_FILE is not set
    control: str | None = None  # address of the agent that started this process as a task; None where it is no task
    max_nodes: int = 1  # largest number of nodes of the job, >= 1
    metadata_url: str | None = None  # metadata server of this machine; None for that of the cloud
    rdma: str | None = None  # name of the RDMA device to use; "off" for none; None for the one that fits
    sends_model_by_rdma: bool = False  # whether the model goes by it, not chunks alone
    scheduler: str | None = None  # "slurm" in a job of Slurm, "kubernetes" in a pod; None elsewhere
    kubernetes: str | None = None  # the API server in a pod, "https://HOST:PORT"
    tells_waits: bool = True  # whether a wait that looks like a hang is explained by a line

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> "Settings":
        """Read the settings from `environ`, by default the environment of this process."""
        environ = os.environ if environ is None else environ
        cache_dir = _path_in(environ, "CHICLE_CACHE_DIR")
        if cache_dir is None and (user_cache_dir := _user_cache_dir(environ)) is not None:
            cache_dir = user_cache_dir / "chicle"
        max_nodes = environ.get("CHICLE_MAX_NODES", "")
        rdma = [word.strip() for word in environ.get("CHICLE_RDMA", "").split(",")]
        kubernetes = None
        if host := environ.get("KUBERNETES_SERVICE_HOST"):
            port = environ.get("KUBERNETES_SERVICE_PORT_HTTPS", "443")
            kubernetes = f"https://{f'[{host}]' if ':' in host else host}:{port}"
        return cls(
            cache_dir=cache_dir,
            secret=environ.get("CHICLE_SECRET") or None,
            secret_file=_path_in(environ, "CHICLE_SECRET_FILE"),
            control=environ.get("CHICLE_CONTROL") or None,
            max_nodes=max(1, int(max_nodes)) if max_nodes.isdecimal() else 1,
            metadata_url=environ.get("CHICLE_METADATA_URL") or None,
            rdma=next((word for word in rdma if word and word != MODEL), None),
            sends_model_by_rdma=MODEL in rdma,
            scheduler="slurm" if environ.get("SLURM_JOB_ID") else "kubernetes" if kubernetes else None,
            kubernetes=kubernetes,
            tells_waits=environ.get("CHICLE_WAITS", "").lower() not in ("off", "0", "no", "false"),
        )

    def kernel_cache_dir(self) -> Path:
        """A folder that exists and can be written, for compiled kernels. It lies in `cache_dir`; where that cannot be
        written (a read-only home), in a folder under the system's temporary one that only this user can read or write.
        Raises OSError when no folder can be written: kernels have to be compiled without a cache."""
        if self.cache_dir is not None and _can_write(kernels := self.cache_dir / "kernels"):
            return kernels
        shared = Path(tempfile.gettempdir()) / f"chicle-cache-{_user_tag()}"
        return shared if _is_private(shared) else _folder_of_this_process()


@contextlib.contextmanager
def environment_with(name: str, value: str) -> Iterator[None]:
    """A variable of the environment has this value meanwhile: for libraries that take some options in no other way."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before


def environment_of_jobs(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for jobs that this process submits to Slurm: without what describes the job that it is in
    itself."""
    environ = os.environ if environ is None else environ
    return {name: value for name, value in environ.items() if name == "SLURM_CONF" or not name.startswith("SLURM_")}


def environment_of_task(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for the task of an agent: that of this process, with these variables."""
    return {**os.environ, **variables}


def hide_stack_traces_of_torch() -> None:
    """Let torch's C++ report errors only; call it before torch is imported, which reads the variable then. It warns of
    each connection that is lost with a stack trace of forty frames, also where the loss is normal, as at the end of a
    job. Agents and tasks report those that matter in a line of their own. A user's value holds."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")


def available_cores(environ: Mapping[str, str] | None = None, *, proc: Path = PROC) -> int:
    """Cores that this process may keep busy; the default of `n_threads`. Returns >= 1.

    The least of: the machine's cores, the affinity of this process, the CPU quota of its control groups (rounded up,
    as joblib does), and joblib's and OpenMP's limits in the environment. Limits that are not a positive number are
    left to their owners to complain about.
    """
    environ = os.environ if environ is None else environ
    limits = [_cores_of_machine(proc, os.getpid())]
    if sys.platform == "linux":
        limits.append(len(os.sched_getaffinity(0)))
    for name in ("LOKY_MAX_CPU_COUNT", "OMP_NUM_THREADS"):
        # OpenMP allows a list, one number per level of nesting; the first is the outermost.
        first = environ.get(name, "").split(",")[0].strip()
        if first.isdecimal() and int(first) > 0:
            limits.append(int(first))
    return max(1, min(limits))


@functools.lru_cache(maxsize=4)
def _cores_of_machine(proc: Path, pid: int) -> int:
    """Cores of the machine, or fewer where a control group says so; read once per process, as scikit-learn does. Every
    fit asks, and reading them takes as long as scikit-learn's checks of a small X."""
    cores, quota = os.cpu_count() or 1, cpu_quota(proc)
    return cores if quota is None else min(cores, math.ceil(quota))


THREAD_LIMITS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
"""What tells BLAS and OpenMP how many threads they may have; the same that joblib sets for its workers."""


def limited_environment(threads: int) -> dict[str, str]:
    """This process's environment, with so many threads for a process that shares the machine with others. By default
    each task's BLAS would take as many threads as there are cores, and they would wait for each other spinning: four
    tasks on two cores took 3 to 35 times as long (measured). What the user has set holds."""
    limits = dict.fromkeys(THREAD_LIMITS, str(threads))
    return {**limits, **os.environ}


def _path_in(environ: Mapping[str, str], name: str) -> Path | None:
    """The path in a variable, absolute where there is a working directory; None when it is empty or not set."""
    chosen = environ.get(name)
    if not chosen:
        return None
    return Path(chosen) if is_folder_gone() else Path(chosen).absolute()


def _user_cache_dir(environ: Mapping[str, str]) -> Path | None:
    """Where programs of this user keep what can be computed again; None when the user has no home."""
    if sys.platform == "win32":
        local = environ.get("LOCALAPPDATA")
        home = environ.get("USERPROFILE")
        return Path(local) if local else Path(home, "AppData", "Local") if home else None
    home = environ.get("HOME")
    if sys.platform == "darwin":
        return Path(home, "Library", "Caches") if home else None
    # A relative XDG_CACHE_HOME is invalid and to be ignored (XDG base directory specification).
    xdg = environ.get("XDG_CACHE_HOME", "")
    return Path(xdg) if Path(xdg).is_absolute() else Path(home, ".cache") if home else None


def _can_write(folder: Path) -> bool:
    """Create `folder` where it is missing, and try; asking for permissions would miss read-only disks."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False


def _is_private(folder: Path) -> bool:
    """Whether `folder` can be written by this user and, on POSIX, by no other user. Cached machine code is executed: a
    folder that another user prepared under a guessable name must not be used."""
    if not _can_write(folder):
        return False
    if sys.platform == "win32":  # the temporary folder itself belongs to the user there
        return True
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700


def _user_tag() -> str:
    return "user" if sys.platform == "win32" else str(os.geteuid())


@functools.cache
def _folder_of_this_process() -> Path:
    """The last resort: a new folder, removed when this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="chicle-cache-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # a forked child still uses its parent's
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
