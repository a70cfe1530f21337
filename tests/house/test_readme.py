"""What the README shows runs as it stands."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT
from tests.timeouts import timeout_s

README = ROOT / "README.md"


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
