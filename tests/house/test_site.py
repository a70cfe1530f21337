"""The site: its reference has every public name, its diagrams every state, and its links lead where the pages are.

`make docs` builds it, with the examples of the gallery; here is what needs no Sphinx.
"""

import re
from pathlib import Path

import pytest

import chicle_elastic
import estimators
from chicle_elastic.scheduling.node_chunks import Phase
from chicle_elastic.scheduling.scheduler import State
from docs._ext import site_pages, state_diagrams, versions
from tests.house.sources import ROOT

DOCS = ROOT / "docs"
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_reference_has_every_public_name() -> None:
    """Each once, below the package that a user imports it from."""
    page = (DOCS / "reference/index.rst").read_text(encoding="utf-8")
    ours, theirs = page.split(".. currentmodule:: chicle_elastic\n")
    listed = re.findall(r"^   (\w+)$", theirs, re.MULTILINE)
    assert sorted(listed) == sorted({*chicle_elastic.__all__} - {*estimators.__all__, "__version__"})
    assert sorted(re.findall(r"^   (\w+)$", ours, re.MULTILINE)) == sorted(estimators.__all__)


def test_every_page_is_in_the_table_of_contents() -> None:
    """From the first page on, through each list of pages; decisions and benchmarks are listed by a pattern."""
    found, todo = set(), [DOCS / "index.md"]
    while todo:
        page = todo.pop()
        found.add(page)
        for block in TOCTREE.findall(page.read_text(encoding="utf-8")):
            entries = [line for line in block.splitlines() if line and not line.startswith(":")]
            paths = [path.resolve() for entry in entries for path in page.parent.glob(f"{entry}.md")]
            todo += [path for path in paths if path not in found]
    pages = {page for page in DOCS.rglob("*.md") if not {"_build", "_generated", "gallery"} & {*page.parts}}
    assert pages - found == set()


def test_diagrams_have_every_state_and_the_edges_that_matter() -> None:
    """Drawn is what simulated histories do: a job that ends, a chunk that is loaded, copied and freed."""
    assert {state.value for state in State} <= state_diagrams.JOB_PLACES.keys()
    assert {phase.value for phase in Phase} <= state_diagrams.CHUNK_PLACES.keys()
    job, chunk = state_diagrams.observe(20)
    assert {("waiting", "forming"), ("moving", "running"), ("running", "finished")} <= job.keys()
    assert {("loading", "owned"), ("copying", "owned"), ("owned", "freeing")} <= chunk.keys()
    assert not [edge for edge in job if edge[0] == "finished"]


@pytest.mark.parametrize(
    ("link", "led"),
    [
        ("linear.md#the-choice", "linear.md#the-choice"),
        ("../SECURITY.md", "_generated/security.md"),
        ("../README.md", "index.md"),
        ("../examples/gallery/plot_3_killed_node.py", "gallery/plot_3_killed_node.rst"),
        ("../examples/cluster_svm.py", "../examples/cluster_svm.py"),
    ],
)
def test_links_of_a_page_lead_to_the_sites_own_pages(link: str, led: str) -> None:
    """Where it has one; else to the file, which is a download then. A block of code has no links."""
    text = f"[a]({link})\n```\n[a]({link})\n```\n"
    assert site_pages.led_links(text, folder=DOCS, page=DOCS / "faq.md") == f"[a]({led})\n```\n[a]({link})\n```\n"


def test_the_page_of_commands_has_each_of_them() -> None:
    """With its help."""
    page = site_pages.commands_page()
    for command in ("convert", "doctor", "replay", "simulate", "status", "submit"):
        assert f"## chicle {command}\n" in page
    assert page.count("usage: chicle") > 10


def test_versions_of_the_site(tmp_path: Path) -> None:
    """The newest release comes first and is where the bare address leads; folders that are no version are left out."""
    for name in ("v0.2.0", "dev", "v0.10.0", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text("")
    versions.main(tmp_path)
    assert re.findall(r'"name": "(.*?)"', (tmp_path / "versions.json").read_text()) == ["v0.10.0", "v0.2.0", "dev"]
    assert "url=v0.10.0/index.html" in (tmp_path / "index.html").read_text()
