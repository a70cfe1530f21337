"""What the README says is true: its example runs, its links lead somewhere, and it fits on one screen."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.house.sources import ROOT
from tests.timeouts import timeout_s

README = ROOT / "README.md"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)#\s]+)")


def test_the_example_runs(tmp_path: Path) -> None:
    """The Python of the README, copied as it stands, ends well and prints an accuracy and a gap."""
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    run = subprocess.run(
        [sys.executable, str(tmp_path / "example.py")],
        cwd=tmp_path,
        env={**os.environ, "CHICLE_CACHE_DIR": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=timeout_s(120),
        check=False,
    )
    assert run.returncode == 0, run.stderr
    accuracy, gap = run.stdout.split(maxsplit=1)
    assert float(accuracy) > 0.9
    assert gap.strip()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    """Every relative link of a page is a file of this repository."""
    links = [link for link in LINK.findall(page.read_text(encoding="utf-8")) if "://" not in link]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def test_the_readme_fits_on_a_screen() -> None:
    """80 lines at most: what is longer belongs into docs/."""
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 80
