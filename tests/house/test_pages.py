"""Pages name files, modules and make targets that exist, so that a move in the code shows where a page has to follow.

Checked are links, paths in backticks (`folder/file.py`, `folder/`), every `python -m MODULE`
of this repository, and every `make TARGET`. The other way round, sections that code cites ("docs/design 2.6",
"docs/style 11") exist, and names of the glossary are those of the code.
"""

import re
from pathlib import Path

from tests.house.floors import PRODUCT
from tests.house.sources import ROOT, python_files

FOLDERS = (ROOT, ROOT / "chicle_elastic", ROOT / "tests")
"""Where a path of a page may begin."""
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WORKFLOWS = [*sorted((ROOT / ".github").rglob("*.yml")), *sorted((ROOT / ".github").rglob("*.md"))]

FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
PATH = re.compile(r"(?:[\w.-]+/)+(?:[\w-]+\.(?:py|md|toml|txt|yml|cff))?")
MODULE = re.compile(r"python -m ([\w.]+)")
LINK = re.compile(r"\]\(([^)#\s]+)")
SECTION = re.compile(r"\]\(([^)#\s:]*)#([^)\s]+)\)")
CITATION = re.compile(r"docs/(design|style) (\d+)(?:\.(\d+))?\b")
TARGET = re.compile(r"\bmake ((?:[a-z][a-z-]* ?)+)")


def paths_of(text: str) -> set[str]:
    """Paths in the inline code of a page."""
    return {code for code in CODE.findall(FENCE.sub("", text)) if PATH.fullmatch(code)}


def modules_of(text: str) -> set[str]:
    """Modules of this repository that a page runs."""
    ours = (*PRODUCT, "benchmarks", "examples", "tests")
    return {name for name in MODULE.findall(text) if name.split(".")[0] in ours}


def targets_of(text: str) -> set[str]:
    """Targets that a page or a workflow makes: in backticks, in blocks of code, or behind `run:`."""
    commands = [*CODE.findall(FENCE.sub("", text)), *FENCE.findall(text), *re.findall(r"run: (.*)", text)]
    return {target for command in commands for names in TARGET.findall(command) for target in names.split()}


def is_module(name: str) -> bool:
    """Whether a module or package of this name is in the repository."""
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file() or path.is_dir()


def faults_of(page: Path) -> set[str]:
    """Paths, modules, links and sections that a page names and that are not there."""
    text = page.read_text(encoding="utf-8")
    faults = {path for path in paths_of(text) if not any((folder / path).exists() for folder in FOLDERS)}
    faults |= {name for name in modules_of(text) if not is_module(name)}
    for target, anchor in SECTION.findall(text):
        headings = HEADING.findall((page.parent / target if target else page).read_text(encoding="utf-8"))
        anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        faults |= {f"{target}#{anchor}"} - {f"{target}#{name}" for name in anchors}
    return faults | dead_links(page, text)


def dead_links(page: Path, text: str) -> set[str]:
    """Relative links of a page or notebook that lead to no file of this repository."""
    return {link for link in LINK.findall(text) if "://" not in link and not (page.parent / link).exists()}


def test_what_pages_name_is_there() -> None:
    """A path may begin at the repository, in `chicle_elastic/` or in `tests/`."""
    faults = {page: faults_of(page) for page in PAGES}
    assert {page.relative_to(ROOT).as_posix(): found for page, found in faults.items() if found} == {}
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 80  # more belongs into docs/


def test_pages_and_workflows_make_targets_that_the_makefile_has() -> None:
    """`make lint types` in a page, a template or a workflow names two targets of the Makefile."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    written = [page for page in [*PAGES, *WORKFLOWS] if "_generated" not in page.parts]  # a copy of what is not judged
    named = {page: targets_of(page.read_text(encoding="utf-8")) for page in written}
    assert {page.name: targets - known for page, targets in named.items() if targets - known} == {}


def test_sections_that_code_cites_exist() -> None:
    """Sections of the design, the invariants in its section 2, and the rules of style."""
    design = (ROOT / "docs/design/README.md").read_text(encoding="utf-8")
    style = (ROOT / "docs/style.md").read_text(encoding="utf-8")
    known = {("design", number, "") for number in re.findall(r"^## (\d+)\. ", design, re.MULTILINE)}
    invariants = design.partition("\n## 2. ")[2].partition("\n## ")[0]
    known |= {("design", "2", number) for number in re.findall(r"^(\d+)\. ", invariants, re.MULTILINE)}
    known |= {("style", number, "") for number in re.findall(r"^(\d+)\. \*\*", style, re.MULTILINE)}
    cited = {(path, found) for path, text in python_files().items() for found in CITATION.findall(text)}
    assert {(path, found) for path, found in cited if found not in known} == set()
    assert len(cited) > 10
    old = re.compile(r"\b(?:DESIGN [0-9]|STYLE rul[e])")
    assert [path for path, text in python_files().items() if old.search(text)] == []


def test_names_in_the_glossary_are_in_the_code() -> None:
    """Each name without a path in the last column is one of the package's, or with a final _ an attribute."""
    glossary = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    names = set(re.findall(r"`([A-Za-z_]+)`", glossary))
    files = python_files()
    source = "\n".join(text for path, text in files.items() if path.startswith(("chicle_elastic/", "tests/harness/")))
    defined = set(re.findall(r"^(?:class |def )?(\w+)(?:\(|:| =)", source, re.MULTILINE))
    estimators = "\n".join(text for path, text in files.items() if path.startswith("estimators/"))
    defined |= set(re.findall(r"(?:self|estimator)\.(\w+_)(?:: [^=\n]+)?(?:,.*)? =", estimators))
    assert names - defined == set()
    assert len(names) > 30


def test_what_looks_like_a_path_is_found() -> None:
    """The checker sees paths, folders, modules and targets, and nothing else."""
    text = "`store/gone.py` and `chunks/`, `a/b` `svm.fit()`\n```\n`not/this.py` make lint types ARGS=1\n```\n"
    assert paths_of(text) == {"store/gone.py", "chunks/"}
    assert modules_of("python -m benchmarks.none and python -m pip") == {"benchmarks.none"}
    assert targets_of(text + "- run: make demo\n") == {"lint", "types", "demo"}
