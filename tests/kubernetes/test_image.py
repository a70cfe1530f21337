"""The Dockerfile names what there is; nothing builds it here."""

import re
import tomllib
from pathlib import Path

from torchx_components.kubernetes_manifest import USER

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "Dockerfile").read_text(encoding="utf-8").replace("\\\n", " ").splitlines()


def test_what_it_copies_is_there_and_enough() -> None:
    """All packages of the wheel, and what building it needs."""
    sources = [
        word for line in LINES if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert all((ROOT / source).exists() for source in sources)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert set(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]) <= set(sources)
    assert {project["project"]["readme"], "pyproject.toml", "constraints.txt"} <= set(sources)


def test_its_extras_and_its_user_are_those_of_the_project() -> None:
    """The manifest runs pods as that user; torch has the version that was tested."""
    text = "\n".join(LINES)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [extras] = re.findall(r'"\.\[([a-z,]+)\]"', text)
    assert set(extras.split(",")) <= project["optional-dependencies"].keys()
    assert f"USER {USER}" in LINES
    assert f"--uid {USER}" in text
    assert re.search(r"^torch==", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert f"python:{project['requires-python'].removeprefix('>=')}-" in text
