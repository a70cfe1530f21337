"""Reads the imports of the product and finds what stands on the wrong floor (docs/design 3).

    5.2  torchx_components        2.2  solvers (linear models and networks)
    5.1  cli                      2.1  monitoring
    5.0  estimators               2.0  store, transports
    4    cluster                  1    chunks, scheduling, policies, resources
    3    runtime                  0    errors, ids, values, clock, cgroups, settings, waits ...

The public face (`chicle_elastic/__init__.py`) stands above all: its names come from every floor, lazily. The product
takes nothing from it but the version.

The large folders have rooms, each with a level of its own (`ROOMS`): 4.0 `cluster.net` is below 4.2 `cluster.agent`. A
file imports only from lower floors, from lower rooms of its floor or from its own room, and no files import each other
in a circle. `testing` stands above the cluster, and no file of the product imports it. "Lazily" means inside a function
or under `if TYPE_CHECKING`: such an import costs nothing at start, but it is a dependency like any other and so has to
keep to the floors.

Everything here is a function of (path, source text), so that the tests can show it bad sources. The rules about calls
that would run foreign bytes are those of lint, but for an argument `allow_pickle`.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

FOLDERS = {
    "chunks": (1, 0),
    "scheduling": (1, 0),
    "policies": (1, 0),
    "resources": (1, 0),
    "store": (2, 0),
    "transports": (2, 0),
    "monitoring": (2, 1),  # below the runtime, which writes its records
    "solvers": (2, 2),
    "runtime": (3, 0),
    "cluster": (4, 0),
    "testing": (5, 0),
    "torch": (5, 0),  # loops of PyTorch on nodes that come and go
    "estimators": (5, 0),
    "evaluate": (5, 1),
    "cli": (5, 2),
    "torchx_components": (5, 3),  # its components start the commands
}
"""Floor and level of each folder."""
WITH_LEVELS = (2, 5)  # floors whose folders stand one above the other
ROOMS = {
    "runtime": (
        ("training", "collectives"),
        ("checkpoint", "control"),
        ("cluster_task",),
        ("in_process", "simulate"),
    ),
    "cluster": (
        ("net", "rendezvous", "task_options"),
        ("consensus", "transfer", "options"),
        ("agent",),
        ("launcher",),
        ("local",),
    ),
}
"""Folders with rooms: their folders and files, from the lowest level to the highest."""
LEVEL_OF_ROOM = {
    f"{folder}.{room}": level
    for folder, levels in ROOMS.items()
    for level, rooms in enumerate(levels)
    for room in rooms
}
FLOOR_0_FILES = (
    "errors",
    "ids",
    "values",
    "clock",
    "closing",
    "disk_watch",
    "garbage",
    "cgroups",
    "settings",
    "start_signals",
    "surroundings",
    "notebook",
    "uninterrupted",
    "versions",
    "waits",
    "moved",
)
FACE = "chicle_elastic"
TOP_FOLDERS = ("estimators", "torchx_components")
PRODUCT = ("chicle_elastic", *TOP_FOLDERS)

STDLIB = sys.stdlib_module_names
# What the lower floors may import of others: at once, and lazily on top of that.
ALLOWED_BELOW_FLOOR_2 = {
    "chunks": (("numpy",), ("scipy", "sklearn", "pyarrow", "fsspec")),
    "scheduling": (("numpy", "msgspec"), ()),
    "policies": (("numpy",), ()),
    "resources": ((), ()),
}


@dataclass(frozen=True, slots=True)
class Offence:
    """One line that breaks a rule of the house; prints as `file:line: what, and what to do`."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """The form that editors make clickable."""
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module."""

    module: str  # absolute dotted name
    names: tuple[str, ...]  # what is taken from it by `from module import names`
    line: int  # line in the file
    is_lazy: bool  # not executed when the file is imported

    @property
    def root(self) -> str:
        """Top-level package."""
        return self.module.partition(".")[0]

    @property
    def is_version(self) -> bool:
        """The one thing that the product takes from the public face."""
        return self.module == FACE and self.names == ("__version__",)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module stands."""

    folder: str  # "chunks", "estimators", "cluster.net", ...; for the files of floor 0 their own name
    floor: int  # 0 to 5, and 6 for the public face
    level: int = 0  # of the room or folder on its floor; 0 where the floor has none

    @property
    def height(self) -> tuple[int, int]:
        """Floor and level."""
        return self.floor, self.level

    @property
    def label(self) -> str:
        """As messages say it: "floor 2", "floor 4.1"."""
        has_level = self.folder in LEVEL_OF_ROOM or self.floor in WITH_LEVELS
        return f"floor {self.floor}.{self.level}" if has_level else f"floor {self.floor}"


def place_of(module: str) -> Place | None:
    """Where the product's module stands; None for a module that has no floor yet."""
    parts = module.split(".")
    if parts[0] in TOP_FOLDERS:
        return Place(parts[0], *FOLDERS[parts[0]])
    if module == FACE:
        return Place("the public face", 6)
    below = parts[1]
    if below in ROOMS and len(parts) > 2:
        room = f"{below}.{parts[2]}"
        return Place(room, FOLDERS[below][0], LEVEL_OF_ROOM[room]) if room in LEVEL_OF_ROOM else None
    if below in FOLDERS:
        return Place(below, *FOLDERS[below])
    if below in FLOOR_0_FILES:
        return Place(below, 0)
    return Place("cli", *FOLDERS["cli"]) if below in ("__main__", "launch") else None


def module_of(path: str) -> str:
    """Dotted name of the module in `path` (relative to the repository, with slashes)."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: str, tree: ast.Module) -> Iterator[Import]:
    """Every import of a file, those by `importlib.import_module("constant")` included."""
    package = module_of(path).split(".")
    if not path.endswith("__init__.py"):
        package = package[:-1]
    for node, is_lazy in _walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(alias.name, (), node.lineno, is_lazy)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            yield Import(module, tuple(alias.name for alias in node.names), node.lineno, is_lazy)
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                yield Import(node.args[0].value, (), node.lineno, is_lazy)


def check_floors(path: str, source: str) -> list[Offence]:
    """Offences of one file of the product against the floors, and against the list of who may import which library."""
    here = place_of(module_of(path))
    if here is None:
        return [Offence(path, 1, "this folder has no floor; give it one in tests/house/floors.py and docs/design 3")]
    tree = ast.parse(source, path)
    offences: list[Offence] = []
    for imported in imports_of(path, tree):
        texts = _product_import(here, imported) if imported.root in PRODUCT else _foreign_import(path, here, imported)
        offences += [Offence(path, imported.line, text) for text in texts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr) and _root_name(node) == "torch":
            offences.append(Offence(path, node.lineno, _torch_private(node.attr)))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            offences.append(Offence(path, node.lineno, "allow_pickle may only be False: nothing is unpickled"))
    return offences


def _product_import(here: Place, imported: Import) -> Iterator[str]:
    # `from chicle_elastic import errors` means the module; `from chicle_elastic.errors import X` the one before it.
    has_rooms = imported.module == "chicle_elastic" or imported.module.removeprefix("chicle_elastic.") in ROOMS
    targets = [f"{imported.module}.{name}" for name in imported.names] if has_rooms else []
    if imported.is_version:
        return
    targets = [target for target in targets if place_of(target)] or [imported.module]
    for target in targets:
        there = place_of(target)
        if there is None:
            yield f"imports {target}, which has no floor"
        elif there.folder == here.folder:
            continue
        elif here.floor == 6 and there.floor > 0 and not imported.is_lazy:
            yield f"the public face imports {target} at once; load its names when they are asked for"
        elif there.folder == "testing":
            yield f"imports {target}; testing is for tests only"
        elif not _may_stand_on(here, there):
            yield (
                f"{here.folder} is on {here.label} and imports {target} from {there.label}; import from "
                "lower floors, lower rooms or the own room only: pass the value in, or move what both need further down"
            )


def check_circles(files: Mapping[str, str]) -> list[Offence]:
    """The first circle of files that import each other, lazily or not; empty where there is none.

    Args:
        files: Sources by path.
    """
    modules = {module_of(path): path for path in files}
    imports: dict[str, set[str]] = {}
    for path, source in files.items():
        imports[path] = set()
        for imported in imports_of(path, ast.parse(source, path)):
            targets = [f"{imported.module}.{name}" for name in imported.names]
            found = {modules[target] for target in targets if target in modules}
            if not found and not imported.is_version and imported.module in modules:
                found = {modules[imported.module]}
            imports[path] |= found - {path}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        circle = error.args[1][::-1]  # each file imports the next one
        return [Offence(circle[0], 1, f"these files import each other in a circle: {' -> '.join(circle)}")]
    return []


def _root_folder(place: Place) -> str:
    return place.folder.partition(".")[0]


def _may_stand_on(here: Place, there: Place) -> bool:
    return there.height < here.height or there.floor == here.floor == 0


def _foreign_import(path: str, here: Place, imported: Import) -> Iterator[str]:
    root = imported.root
    if root in STDLIB:
        return
    if here.floor < 2:
        at_once, lazily = ALLOWED_BELOW_FLOOR_2.get(here.folder, ((), ()))
        if root not in at_once and not (imported.is_lazy and root in lazily):
            yield (
                f"floor {here.floor} imports {root}; {here.folder} may import the standard library"
                f"{''.join(f', {name}' for name in at_once)}{''.join(f', lazily {name}' for name in lazily)}"
            )
    if root in ("numba", "llvmlite") and not path.startswith("chicle_elastic/solvers/kernels/"):
        yield f"imports {root}; numba stays in solvers/kernels, so that everything else starts without it"
    if root == "torch":
        yield from _torch_import(path, here, imported)
    may_submit = here.folder == "torchx_components" or (imported.is_lazy and _root_folder(here) in ("cluster", "cli"))
    if root == "torchx" and not may_submit:
        yield "imports torchx; only torchx_components may, and cluster and cli lazily (the submitting side)"
    if root in ("matplotlib", "tensorboard", "pandas", "pyarrow", "pyverbs", "cloudpickle") and not imported.is_lazy:
        yield f"imports {root} at once; optional packages are imported where they are used, so that import stays free"


def _torch_import(path: str, here: Place, imported: Import) -> Iterator[str]:
    is_torch_solver = PurePosixPath(path).parts[:2] == ("chicle_elastic", "solvers") and any(
        part.startswith(("local_sgd", "flat", "engines", "torch")) for part in PurePosixPath(path).parts[2:]
    )
    if here.floor < 3 and not is_torch_solver:
        yield f"{here.folder} imports torch; only the torch solvers (local_sgd, flat, engines) and floors 3 to 5 may"
    if (
        _root_folder(here) == "cluster"
        and not imported.is_lazy
        and path != "chicle_elastic/cluster/rendezvous/handler.py"
    ):
        yield "imports torch at once; an agent loads none: it would take four times the memory"
    if here.folder == "estimators" and not imported.is_lazy:
        yield "imports torch at once; import it where it is used: `import estimators` loads no torch"
    for name in (*imported.module.split("."), *imported.names):
        if _is_private(name):
            yield _torch_private(name)


def _torch_private(name: str) -> str:
    return f"uses torch's private {name}, which may change without notice; build on its public names"


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", "")


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """All nodes, each with whether it is skipped when the file is imported."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_lazy = waiting.pop()
        yield node, is_lazy
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            # Decorators and defaults run at once.
            inside = {id(child) for child in (node.body if isinstance(node.body, list) else [node.body])}
            waiting += [(child, is_lazy or id(child) in inside) for child in ast.iter_child_nodes(node)]
        elif isinstance(node, ast.If) and _is_type_checking(node.test):
            inside = {id(child) for child in node.body}
            waiting += [(child, is_lazy or id(child) in inside) for child in ast.iter_child_nodes(node)]
        else:
            waiting += [(child, is_lazy) for child in ast.iter_child_nodes(node)]


def _is_type_checking(test: ast.expr) -> bool:
    return getattr(test, "attr", getattr(test, "id", "")) == "TYPE_CHECKING"
