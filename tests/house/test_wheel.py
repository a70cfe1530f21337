"""The wheel holds what it should, and with the core dependencies alone it fits a ChicleSVM.

The wheel is built for real and installed by pip into a fresh environment. Its dependencies are not downloaded once
more: the environment gets links to the packages installed here, but only to those that the wheel's own metadata asks
for without an extra, and to what these ask for in turn. So an import of anything that is not a declared core dependency
fails there just as it does for a user (torch is shown to be absent), in a second instead of a minute and without a
network. What this does not show is that a resolver finds these packages on an index; `make demo` in .ci/run installs
the core from one.
"""

import importlib.metadata
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.timeouts import timeout_s

ROOT = Path(__file__).parents[2]
CORE = {"numpy", "scipy", "scikit-learn", "numba", "msgspec", "threadpoolctl"}

FIT = """
import importlib.util, sys
assert importlib.util.find_spec("torch") is None, "torch can be imported here: this environment is not bare"
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import scale
from estimators import ChicleSVM
X, y = load_breast_cancer(return_X_y=True)
svm = ChicleSVM().fit(scale(X), y)
print(svm.score(scale(X), y), sys.modules["estimators"].__file__)
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel of the working tree."""
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder)], cwd=ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def bare_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with the wheel and its core dependencies, and nothing else."""
    home = tmp_path_factory.mktemp("bare") / "venv"
    venv.create(home, with_pip=False)
    python = home / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")
    pip = [sys.executable, "-m", "pip", "--python", str(python), "--disable-pip-version-check", "--quiet"]
    run([*pip, "install", "--no-deps", "--no-index", str(wheel)])
    site = Path(run([str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    for distribution in core_dependencies(wheel):
        for entry in top_level_entries(distribution):
            (site / entry.name).symlink_to(entry)
    return python


def run(command: list[str], *, cwd: Path | None = None, **environment: str) -> str:
    """Output of a command that has to succeed."""
    result = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=timeout_s(120),
        check=False,
    )
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout


def metadata_of(wheel: Path) -> importlib.metadata.PathDistribution:
    """The metadata inside a wheel."""
    (info,) = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" in name}
    return importlib.metadata.PathDistribution(zipfile.Path(wheel, info + "/"))  # type: ignore[arg-type]


def core_requirements(distribution: importlib.metadata.Distribution) -> list[Requirement]:
    """What a distribution asks for here without any extra."""
    requirements = [Requirement(line) for line in distribution.requires or ()]
    return [need for need in requirements if need.marker is None or need.marker.evaluate({"extra": ""})]


def core_dependencies(wheel: Path) -> list[importlib.metadata.Distribution]:
    """Installed distributions that the wheel asks for without an extra, and what these ask for."""
    found: dict[str, importlib.metadata.Distribution] = {}
    waiting = core_requirements(metadata_of(wheel))
    while waiting:
        need = waiting.pop()
        distribution = importlib.metadata.distribution(need.name)
        assert need.specifier.contains(distribution.version, prereleases=True), f"{need} but {distribution.version}"
        if found.setdefault(canonicalize_name(need.name), distribution) is distribution:
            waiting += core_requirements(distribution)
    return list(found.values())


def top_level_entries(distribution: importlib.metadata.Distribution) -> Iterator[Path]:
    """Files and folders that a distribution puts into site-packages."""
    names = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "__pycache__")}
    for name in names:
        yield Path(str(distribution.locate_file(name)))


def test_the_wheel_has_three_top_level_names(wheel: Path) -> None:
    """Three packages and the metadata; no tests, no examples."""
    names = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    info = {name for name in names if name.endswith(".dist-info")}
    assert len(info) == 1
    assert names - info == {"chicle_elastic", "estimators", "torchx_components"}


def test_the_wheel_has_every_module_and_says_that_it_is_typed(wheel: Path) -> None:
    """Each source file of the three packages is in it, and a py.typed per package, and the licence."""
    names = set(zipfile.ZipFile(wheel).namelist())
    packages = ("chicle_elastic", "estimators", "torchx_components")
    sources = {path.relative_to(ROOT).as_posix() for package in packages for path in (ROOT / package).rglob("*.py")}
    assert sources <= names
    assert {f"{package}/py.typed" for package in packages} <= names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_core_asks_for_five_packages(wheel: Path) -> None:
    """Everything else is behind an extra, torch above all."""
    assert {need.name for need in core_requirements(metadata_of(wheel))} == CORE
    assert "torch" not in {distribution.name for distribution in core_dependencies(wheel)}


@pytest.mark.slow
def test_the_core_fits_an_svm_in_a_bare_environment(bare_python: Path, wheel: Path, tmp_path: Path) -> None:
    """Without extras and without this repository on the path, the installed wheel fits; it brings `chicle`."""
    (tmp_path / "fit.py").write_text(FIT, encoding="utf-8")
    output = run([str(bare_python), "-I", str(tmp_path / "fit.py")], CHICLE_CACHE_DIR=str(tmp_path / "cache"))
    score, file = output.split(maxsplit=1)
    assert float(score) > 0.95
    assert Path(file.strip()).is_relative_to(bare_python.parents[1])
    assert metadata_of(wheel).version in run([str(bare_python.with_name("chicle")), "--version"])
