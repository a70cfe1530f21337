"""What the demo measures goes into the README as it is, and shows what parallelism costs."""

from pathlib import Path

from examples import demo
from tests.house.sources import ROOT

README = ROOT / "README.md"


def test_the_demo_ends_on_the_most_tasks_that_it_had() -> None:
    """Otherwise its last iterations would hide what the others cost."""
    counts = (demo.ELASTIC.num_tasks, *(num_tasks for _, num_tasks in demo.ELASTIC.changes))
    assert counts == demo.NUM_TASKS
    assert counts[-1] == max(counts) > 1


def test_the_table_of_the_readme_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    """The line above it, which says how it was measured, stays."""
    page = tmp_path / "README.md"
    page.write_text(README.read_text(encoding="utf-8"), encoding="utf-8")
    for table in ("| first |\n|-------|\n| 1     |", "| second |\n|--------|\n| 2      |"):
        demo.write_readme(page, table)
    written, original = (path.read_text(encoding="utf-8") for path in (page, README))
    assert _around(written) == _around(original)
    measured = written.partition(demo.MARKS[0])[2].partition(demo.MARKS[1])[0].splitlines()
    assert [line for line in measured if line.startswith("|")] == ["| second |", "|--------|", "| 2      |"]
    assert measured[0].startswith("From `make demo`")


def _around(page: str) -> tuple[str, str]:
    """What is before and behind the measured table."""
    return page.partition(demo.MARKS[0])[0], page.partition(demo.MARKS[1])[2]


def test_the_readme_has_the_methods_of_the_demo() -> None:
    """Its table is of this demo and not of an older one."""
    assert demo.METHOD in README.read_text(encoding="utf-8")
