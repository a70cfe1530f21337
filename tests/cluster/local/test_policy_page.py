"""The examples of the page on policies: they run as they stand there, in process and on a local cluster."""

import re
from pathlib import Path

from tests.house.sources import ROOT
from tests.programs import run_python

PAGE = ROOT / "docs/how-to/write-a-policy.md"


def run(block: str, folder: Path) -> str:
    """What a block prints as a script of a user, in another folder."""
    script = folder / "mine.py"
    script.write_text(block, encoding="utf-8")
    return run_python(str(script), seconds=120, cwd=folder).stdout


def test_the_policy_of_the_page_runs_in_process_and_on_a_cluster(tmp_path: Path) -> None:
    """It prints the chunks of a node by iteration."""
    block, _, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    [policy] = re.findall(r"^@dataclass.*?(?=\n\n\n)", block, re.DOTALL | re.MULTILINE)
    assert len(policy.splitlines()) < 30
    assert re.match(r"\[\d+", out := run(block, tmp_path)), out


def test_the_policies_that_talk_move_chunks_until_the_node_is_cool(tmp_path: Path) -> None:
    """Of 80 degrees four chunks take 20 away; the trainer hears of each, and every chunk of both runs has its line."""
    _, _, block = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    *told, in_process, on_cluster = run(block, tmp_path).splitlines()
    assert told[:4] == [f"policy:Diary {{'moved': {number}, 'slow links': []}}" for number in range(1, 5)]
    for line, node in ((in_process, "task-1"), (on_cluster, "n1")):
        degrees = re.findall(rf"CoolDown moves 1 of 1 chunk: {node} has (\d+) degrees", line)
        assert degrees == ["80", "75", "70", "65"], line
