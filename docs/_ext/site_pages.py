"""What the site has beside its pages: diagrams, the commands with their options, and the pages of the root.

Pages are written for a reader of the repository: their links are relative and name files. The site keeps a link to one
of its pages, leads from a file of the root or of the gallery to its own page of it, and offers any other file as a
download. A link that leads nowhere is a warning, and so an error, of the build.
"""

import contextlib
import io
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from chicle_elastic.cli.main import main as chicle
from estimators.fit_task import ESTIMATORS, parser
from torchx_components.anchor import main as anchor

from . import state_diagrams

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
GENERATED = DOCS / "_generated"
ROOT_PAGES = ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "GOVERNANCE.md")
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(#[^)\s]*)?(?=\))")
ROLE_OF_SKLEARN = re.compile(r":(?:term|ref):`([^`<]*?)(?:\s*<[^`>]*>)?`")
MARKUP = re.compile(r"_(?!\w)(?<=\w_)|\|")
FENCE = re.compile(r"^(?:```|~~~).*?^(?:```|~~~)$", re.DOTALL | re.MULTILINE)


def setup(app: "Sphinx") -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("builder-inited", generate)
    app.connect("source-read", lead_links)
    app.connect("autodoc-process-docstring", escape_names, priority=900)  # after napoleon
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def generate(app: "Sphinx") -> None:
    """Write what is not kept in the repository, into `docs/_generated/`."""
    state_diagrams.main(GENERATED)
    _write(GENERATED / "commands.md", commands_page())
    for name in ROOT_PAGES:
        page = GENERATED / name.lower()
        _write(page, led_links((ROOT / name).read_text(encoding="utf-8"), folder=ROOT, page=page))


def lead_links(app: "Sphinx", docname: str, source: list[str]) -> None:
    """Lead the links of a page to where the site has what they name."""
    page = Path(app.env.doc2path(docname))
    if docname == "design/decisions" or docname == "_generated/changelog":
        # They name everything, so they would come first in every search.
        source[0] = f"---\nnosearch: true\n---\n\n{source[0]}"
    if page.suffix == ".md" and GENERATED not in page.parents:
        source[0] = led_links(source[0], folder=page.parent, page=page)


def escape_names(app: "Sphinx", what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Escape what is no markup in a docstring: `coef_` is a name and no reference, |w| a norm and no substitution.

    What an estimator inherits from scikit-learn links into scikit-learn's glossary and guide, which this site has not.
    """
    num_borders = 0  # of the present table: above its header, below it, and at its end
    for index, line in enumerate(lines):
        line = lines[index] = ROLE_OF_SKLEARN.sub(r"`\1`", line)
        if line.lstrip().startswith("==="):
            num_borders = (num_borders + 1) % 3
        elif num_borders == 0 and not line.lstrip().startswith((">>>", "...", "..")):
            parts = re.split(r"(``.*?``|`[^`]*`)", line)
            parts[::2] = [MARKUP.sub(r"\\\g<0>", part) for part in parts[::2]]
            lines[index] = "".join(parts)


def led_links(text: str, *, folder: Path, page: Path) -> str:
    """A page whose relative links, as they are in a file of `folder`, are those of the site's `page`."""

    def led(match: re.Match[str]) -> str:
        link, anchor = match[1], match[2] or ""
        target = (folder / link).resolve()
        if target.parent == ROOT and target.name in ROOT_PAGES:
            target = GENERATED / target.name.lower()
        elif target.parent == ROOT / "examples" / "gallery":
            is_script = target.suffix == ".py"
            target = DOCS / "gallery" / (f"{target.stem}.rst" if is_script else "index.rst")
        elif target == ROOT / "README.md":
            target = DOCS / "index.md"
        return os.path.relpath(target, page.parent) + anchor

    # Links in blocks of code are none.
    parts, end = [], 0
    for block in FENCE.finditer(text):
        parts += [LINK.sub(led, text[end : block.start()]), block[0]]
        end = block.end()
    return "".join([*parts, LINK.sub(led, text[end:])])


def commands_page() -> str:
    """What each command says of itself."""
    lines = [
        "# Commands",
        "",
        "What each says with `--help`. The launcher has [its options](../cluster.md#by-hand) with the cluster.",
        "",
    ]
    commands = re.findall(r"^  ([a-z]+)  ", help_of(), re.MULTILINE)
    pages = [("chicle", help_of()), *((f"chicle {name}", help_of(name)) for name in commands)]
    pages += [
        ("chicle submit kubernetes", help_of("submit", "kubernetes")),
        ("python -m torchx_components.anchor", _printed(lambda: anchor(["--help"]))),
        *((f"python -m estimators.fit_task --estimator {name}", parser(name).format_help()) for name in ESTIMATORS),
    ]
    for title, text in pages:
        lines += [f"## {title}", "", "```text", text.rstrip().replace(sys.executable, "this one"), "```", ""]
    return "\n".join(lines)


def help_of(*command: str) -> str:
    """The help of `chicle COMMAND`."""
    return _printed(lambda: chicle([*command, "--help"]))


def _printed(call: Callable[[], object]) -> str:
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        call()
    return text.getvalue()


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text(encoding="utf-8") != text:  # an unchanged page is not read again
        path.write_text(text, encoding="utf-8")
