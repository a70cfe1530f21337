"""What the README shows runs as it stands."""

import re
from pathlib import Path

from tests.house.sources import ROOT
from tests.programs import run_python

README = ROOT / "README.md"


def test_the_example_runs(tmp_path: Path) -> None:
    """The Python of the README, copied as it stands, ends well and prints an accuracy and a gap."""
    (example,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(example, encoding="utf-8")
    run = run_python(str(tmp_path / "example.py"), seconds=120, cwd=tmp_path)
    accuracy, gap = run.stdout.split(maxsplit=1)
    assert float(accuracy) > 0.9
    assert gap.strip()
