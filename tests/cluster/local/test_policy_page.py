"""The first example of the page on policies: it runs as it stands there, in process and on a local cluster."""

import re
import subprocess
import sys
from pathlib import Path

from tests.house.sources import ROOT
from tests.timeouts import timeout_s

PAGE = ROOT / "docs/how-to/write-a-policy.md"


def test_the_policy_of_the_page_runs_in_process_and_on_a_cluster(tmp_path: Path) -> None:
    """As a script of a user, in another folder; it prints the chunks of a node by iteration."""
    [block, _] = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [policy] = re.findall(r"^@dataclass.*?(?=\n\n\n)", block, re.DOTALL | re.MULTILINE)
    assert len(policy.splitlines()) < 30
    script = tmp_path / "relieve.py"
    script.write_text(block, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, timeout=timeout_s(120), check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert re.match(r"\[\d+", ended.stdout), ended.stdout
