"""The tables of a benchmark come into the block of its page, and every block is one that a make target writes."""

import re
from pathlib import Path

import pytest

from benchmarks import page
from benchmarks.report import END_OF_MEASURED, Report, parser
from tests.house.sources import ROOT

BLOCK = re.compile(r"<!-- (\w+):start -->\n.*?<!-- \1:end -->", re.DOTALL)
COMMAND = re.compile(r"-m benchmarks\.page docs/benchmarks/([\w-]+\.md) (\w+)")


def test_tables_of_what_a_benchmark_prints() -> None:
    """Two tables are kept apart, each below the line before it, and what else is printed is left out."""
    lines = ["else\n", "digits\n", "\n", "| a |\n", "| - |\n", "| 1 |\n", "\n", "| b |\n", "| - |\n", "{}\n"]
    assert page.tables_of(lines) == "digits\n\n| a |\n| - |\n| 1 |\n\n| b |\n| - |"
    assert page.tables_of(["nothing\n"]) == ""


def test_only_the_block_of_that_name_is_replaced() -> None:
    """The text around it and other blocks stay."""
    text = "Before.\n<!-- a:start -->\nold\n<!-- a:end -->\n<!-- b:start -->\nother\n<!-- b:end -->\nBehind.\n"
    assert page.replaced(text, "a", "new") == text.replace("old", "new")
    with pytest.raises(ValueError, match="no block"):
        page.replaced(text, "c", "new")


def test_a_page_that_is_rewritten_as_a_whole_keeps_what_people_wrote(tmp_path: Path) -> None:
    """Keep what stands below the mark; a quick run changes nothing."""
    written = tmp_path / "page.md"
    written.write_text(f"old\n{END_OF_MEASURED}\nWhat was learnt.\n", encoding="utf-8")
    for arguments, measured in ((["--quick"], "old\n"), ([], "new\n")):
        Report(parser("", page=True).parse_args(["--page", str(written), *arguments])).write_page("new\n")
        assert written.read_text(encoding="utf-8") == f"{measured}{END_OF_MEASURED}\nWhat was learnt.\n"


def test_every_block_has_its_command_and_every_command_its_block() -> None:
    """A page says nothing measured that no target rewrites."""
    pages = ROOT / "docs" / "benchmarks"
    blocks = {(file.name, name) for file in pages.glob("*.md") for name in BLOCK.findall(file.read_text("utf-8"))}
    commands = set(COMMAND.findall((ROOT / "Makefile").read_text(encoding="utf-8")))
    assert blocks == commands
    assert len(blocks) > 10
    assert all(
        (ROOT / "benchmarks" / f"{name}.py").exists() or (ROOT / "benchmarks" / name).is_dir() for _, name in blocks
    )
