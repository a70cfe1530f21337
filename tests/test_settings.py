"""The environment: where caches go, and how many cores there are to use."""

import contextlib
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest

from chicle_elastic.settings import Settings, available_cores, environment_with
from tests.programs import run_python

NO_LIMITS: dict[str, str] = {}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The system's temporary folder, one of this test's own."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def mode(path: Path) -> int:
    """Permission bits of `path`."""
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize(
    ("platform", "environ", "expected"),
    [
        ("linux", {"HOME": "/h"}, "/h/.cache/chicle"),
        ("linux", {"HOME": "/h", "CHICLE_CACHE_DIR": ""}, "/h/.cache/chicle"),
        ("linux", {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/x/chicle"),
        ("linux", {"HOME": "/h", "XDG_CACHE_HOME": "/x", "CHICLE_CACHE_DIR": "/mine"}, "/mine"),
        ("linux", {"HOME": "/h", "XDG_CACHE_HOME": "relative"}, "/h/.cache/chicle"),
        ("darwin", {"HOME": "/h", "XDG_CACHE_HOME": "/x"}, "/h/Library/Caches/chicle"),
        ("win32", {"LOCALAPPDATA": "/l", "USERPROFILE": "/u"}, "/l/chicle"),
        ("win32", {"USERPROFILE": "/u"}, "/u/AppData/Local/chicle"),
    ],
)
def test_by_default_caches_go_where_the_platform_keeps_them(monkeypatch, platform, environ, expected):
    """A relative XDG_CACHE_HOME is invalid by its specification, an empty variable is no choice."""
    monkeypatch.setattr(sys, "platform", platform)
    assert Settings.from_environment(environ).cache_dir == Path(expected)


@pytest.mark.parametrize("unwritable", ["/proc/chicle", "/dev/null/chicle", "file"])
def test_where_the_home_cannot_be_written_a_private_temporary_folder_is_used(tmp_path, temporary, unwritable):
    """A read-only home, a path through something that is no folder: never an error. (Root may write anywhere else.)"""
    (tmp_path / "file").write_text("in the way")
    kernels = Settings.from_environment({"CHICLE_CACHE_DIR": str(tmp_path / unwritable)}).kernel_cache_dir()
    assert kernels == temporary / f"chicle-cache-{os.geteuid()}"
    assert mode(kernels) == 0o700


def test_without_a_home_a_private_temporary_folder_is_used(temporary):
    """Containers run as users that have none."""
    settings = Settings.from_environment({})
    assert settings.cache_dir is None
    assert settings.kernel_cache_dir() == temporary / f"chicle-cache-{os.geteuid()}"


def test_the_temporary_folder_is_found_again_by_the_next_process(temporary):
    """Otherwise every process would compile every kernel again."""
    assert Settings().kernel_cache_dir() == Settings().kernel_cache_dir()


@pytest.mark.parametrize("trap", ["open to others", "symbolic link"])
def test_a_temporary_folder_that_others_prepared_is_not_trusted(tmp_path, trap):
    """Cached code is executed: what somebody else can write must not be used. The new folder goes with the process."""
    program = (
        f"import tempfile; tempfile.tempdir = {str(tmp_path)!r}\n"
        "from chicle_elastic.settings import Settings\n"
        "print(Settings().kernel_cache_dir(), end='')"
    )
    guessable = tmp_path / f"chicle-cache-{os.geteuid()}"
    if trap == "open to others":
        guessable.mkdir()
        guessable.chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        guessable.symlink_to(tmp_path / "elsewhere")
    run = run_python("-c", program)
    used = Path(run.stdout)
    assert used.parent == tmp_path
    assert used != guessable
    assert not used.exists()


def test_the_fallback_folder_of_a_process_is_private_and_outlives_its_forks(temporary):
    """A forked child that ends must not take away the folder that its parent uses."""
    program = (
        f"import os, stat, tempfile; tempfile.tempdir = {str(temporary)!r}\n"
        "from chicle_elastic.settings import Settings\n"
        "folder = Settings().kernel_cache_dir()\n"
        "if (child := os.fork()) == 0: raise SystemExit\n"
        "os.waitpid(child, 0)\n"
        "print(oct(stat.S_IMODE(folder.stat().st_mode)), end='')"
    )
    (temporary / f"chicle-cache-{os.geteuid()}").touch()
    run = run_python("-c", program)
    assert run.stdout == "0o700"


@pytest.mark.parametrize(
    ("said", "device", "sends_model"),
    [
        ("", None, False),
        ("off", "off", False),
        ("mlx5_1", "mlx5_1", False),
        ("model", None, True),
        ("mlx5_1, model", "mlx5_1", True),
        ("off,model", "off", True),  # without a device there is nothing to send it by
    ],
)
def test_the_model_goes_by_rdma_where_it_is_asked_for(said, device, sends_model):
    """The name of the device, and whether the model goes by it as well, are of one variable."""
    settings = Settings.from_environment({"CHICLE_RDMA": said})
    assert (settings.rdma, settings.sends_model_by_rdma) == (device, sends_model)


def test_cores_are_those_this_process_may_run_on(tmp_path):
    """Affinity counts, not the size of the machine. In a process of its own: affinity would stay."""
    cores = sorted(os.sched_getaffinity(0))
    program = (
        f"import os; os.sched_setaffinity(0, [{cores[0]}])\n"
        "from pathlib import Path\nfrom chicle_elastic.settings import available_cores\n"
        f"print(available_cores({{}}, proc=Path({str(tmp_path)!r})))"
    )
    run = run_python("-c", program)
    assert run.stdout == "1\n"
    assert available_cores(NO_LIMITS, proc=tmp_path) == len(cores)


def test_a_quota_counts_rounded_up(tmp_path):
    """A container with 0.5 of a core may run one thread (as joblib counts)."""
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/\n")
    (tmp_path / "self" / "mountinfo").write_text(f"30 23 0:26 / {tmp_path} rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cores(NO_LIMITS, proc=tmp_path) == 1


@pytest.mark.parametrize("name", ["LOKY_MAX_CPU_COUNT", "OMP_NUM_THREADS"])
@pytest.mark.parametrize(("value", "limited"), [("1", True), ("1,8", True), ("0", False), ("many", False), ("", False)])
def test_limits_of_joblib_and_openmp_count_when_they_are_numbers(tmp_path, name, value, limited):
    """Anything else is for their owners to complain about, and no limit."""
    unlimited = available_cores(NO_LIMITS, proc=tmp_path)
    assert available_cores({name: value}, proc=tmp_path) == (1 if limited else unlimited)


def test_processes_of_joblib_share_the_cores():
    """As in GridSearchCV(n_jobs=k): all processes together start no more threads than there are cores."""
    program = (
        "import joblib\nfrom chicle_elastic.settings import available_cores\n"
        "num_jobs = max(2, available_cores())\n"
        "counts = joblib.Parallel(n_jobs=num_jobs)(joblib.delayed(available_cores)() for _ in range(num_jobs))\n"
        "print(counts == [1] * num_jobs, counts)"
    )
    # Without the limits that this suite itself may run under, which would hide joblib's.
    environ = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    run = run_python("-c", program, environ=environ)
    assert run.stdout.startswith("True"), run.stdout


@pytest.mark.parametrize("before", [None, "0"])
def test_a_variable_has_another_value_for_a_moment(monkeypatch, before):
    """And then its own again, or none, whatever happened meanwhile."""
    if before is not None:
        monkeypatch.setenv("CHICLE_TEST_MOMENT", before)
    with contextlib.suppress(ZeroDivisionError), environment_with("CHICLE_TEST_MOMENT", "1"):
        assert os.environ["CHICLE_TEST_MOMENT"] == "1"
        raise ZeroDivisionError
    assert os.environ.get("CHICLE_TEST_MOMENT") == before
