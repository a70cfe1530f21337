"""The site: its reference has every public name, its diagrams every state, and its links lead where the pages are.

`make docs` builds it, with the examples of the gallery; here is what needs no Sphinx.
"""

import re

import pytest

import chicle_elastic
import estimators
from docs._ext import site_pages
from tests.house.sources import ROOT

DOCS = ROOT / "docs"


def test_the_reference_has_every_public_name() -> None:
    """Each once, below the package that a user imports it from."""
    page = (DOCS / "reference/index.rst").read_text(encoding="utf-8")
    ours, theirs = page.split(".. currentmodule:: chicle_elastic\n")
    listed = re.findall(r"^   (\w+)$", theirs, re.MULTILINE)
    assert sorted(listed) == sorted({*chicle_elastic.__all__} - {*estimators.__all__, "__version__"})
    assert sorted(re.findall(r"^   (\w+)$", ours, re.MULTILINE)) == sorted(estimators.__all__)


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
