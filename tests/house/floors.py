"""Reads the imports of the product and finds what stands on the wrong floor (docs/design 3).

`LAYERS` has the floors, and the rooms of the two large ones, from the lowest to the highest. A file imports only from
lower layers or its own package, and no files import each other in a circle. The public face
(`chicle_elastic/__init__.py`) stands above all: its names come from every floor, lazily, and the product takes nothing
from it but the version. `testing` is for tests. "Lazily" means inside a function or under `if TYPE_CHECKING`: such an
import costs nothing at start, but it is a dependency like any other and so has to keep to the floors.

Everything here is a function of (path, source text), so that the tests can show it bad sources.
"""

import ast
import graphlib
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

FACE = "chicle_elastic"
PRODUCT = (FACE, "estimators", "torchx_components")
FLOOR_0 = (
    "errors ids values clock garbage cgroups settings start_signals surroundings notebook uninterrupted versions waits"
)
ROOMS = {
    "runtime": ("training collectives", "checkpoint control", "cluster_task", "in_process simulate"),
    "cluster": ("net rendezvous", "consensus transfer options", "agent", "launcher", "local"),
}
"""Folders with rooms: their folders and files, from the lowest level to the highest."""


def _rooms(folder: str) -> list[list[str]]:
    return [[f"{folder}.{room}" for room in level.split()] for level in ROOMS[folder]]


LAYERS = [
    FLOOR_0.split(),
    ["chunks", "scheduling", "policies", "resources"],
    ["solvers", "store", "transports", "monitoring"],  # the runtime writes records (docs/design/decisions/0003)
    ["runtime"],
    *_rooms("runtime"),
    ["cluster"],
    *_rooms("cluster"),
    ["cli"],
    ["testing", "launch", "__main__"],
]
LAYER_OF = {f"{FACE}.{name}": layer for layer, names in enumerate(LAYERS) for name in names}
LAYER_OF |= {"estimators": len(LAYERS), "torchx_components": len(LAYERS), FACE: len(LAYERS) + 1}

# What the two lowest floors may import of others: at once, and lazily on top of that.
ALLOWED_BELOW = {
    "chunks": ({"numpy"}, {"scipy", "sklearn", "pyarrow", "fsspec"}),
    "scheduling": ({"numpy", "msgspec"}, set()),
    "policies": ({"numpy"}, set()),
}
OPTIONAL = ("matplotlib", "tensorboard", "pandas", "pyarrow", "pyverbs", "cloudpickle")
TORCH_PRIVATE = "chicle_elastic/cluster/agent/torch_private.py"


@dataclass(frozen=True, slots=True)
class Offence:
    """One line that breaks a rule of the house; prints as `file:line: what, and what to do`."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        """Return the form that editors make clickable."""
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module.

    Attributes:
        module: Absolute dotted name.
        names: What is taken from it by `from module import names`.
        line: Line in the file.
        is_lazy: Not executed when the file is imported.
    """

    module: str
    names: tuple[str, ...]
    line: int
    is_lazy: bool

    @property
    def root(self) -> str:
        """Top-level package."""
        return self.module.partition(".")[0]

    @property
    def is_version(self) -> bool:
        """Say whether it is the one thing that the product takes from the public face."""
        return self.module == FACE and self.names == ("__version__",)


def package_of(module: str) -> str | None:
    """Return the package or file of `LAYER_OF` that a module of the product belongs to; None where there is none."""
    parts = module.split(".")
    names = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    found = next((name for name in names if name in LAYER_OF), None)
    folder = module.split(".")[1] if "." in module else ""
    if (found == FACE and module != FACE) or (folder in ROOMS and len(parts) > 2 and found == f"{FACE}.{folder}"):
        return None  # a folder without a floor, or without a room
    return found


def module_of(path: str) -> str:
    """Return the dotted name of the module in `path` (relative to the repository, with slashes)."""
    parts = PurePosixPath(path).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports_of(path: str, tree: ast.Module) -> Iterator[Import]:
    """Yield every import of a file, those by `importlib.import_module("constant")` included."""
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
    """Return the offences of one file against the floors, and against the list of who may import which library."""
    here = package_of(module_of(path))
    if here is None:
        return [Offence(path, 1, "this folder has no floor; give it one in tests/house/floors.py and docs/design 3")]
    tree = ast.parse(source, path)
    offences: list[Offence] = []
    for imported in imports_of(path, tree):
        texts = _product_import(here, imported) if imported.root in PRODUCT else _foreign_import(path, here, imported)
        offences += [Offence(path, imported.line, text) for text in texts]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _root_name(node) == "torch":
            offences += [Offence(path, node.lineno, text) for text in _torch_private(path, node.attr)]
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            offences.append(Offence(path, node.lineno, "allow_pickle may only be False: nothing is unpickled"))
    return offences


def _product_import(here: str, imported: Import) -> Iterator[str]:
    if imported.is_version:
        return
    # `from chicle_elastic import errors` means the module; `from chicle_elastic.errors import X` the one before it.
    targets = [f"{imported.module}.{name}" for name in imported.names]
    targets = [target for target in targets if target in LAYER_OF] or [imported.module]
    for target in targets:
        there = package_of(target)
        if there is None:
            yield f"imports {target}, which has no floor"
        elif here == FACE and LAYER_OF[there] and there != FACE and not imported.is_lazy:
            yield f"the public face imports {target} at once; load its names when they are asked for"
        elif there == f"{FACE}.testing" and here != there:
            yield f"imports {target}; testing is for tests only"
        elif here != there and LAYER_OF[there] >= max(LAYER_OF[here], 1):
            yield (
                f"{here} (layer {LAYER_OF[here]}) imports {target} (layer {LAYER_OF[there]}); import from lower "
                "layers or the own package only: pass the value in, or move what both need further down"
            )


def _foreign_import(path: str, here: str, imported: Import) -> Iterator[str]:
    root = imported.root
    if root in sys.stdlib_module_names:
        return
    folder = here.removeprefix(f"{FACE}.").partition(".")[0]
    if LAYER_OF[here] < 2:
        at_once, lazily = ALLOWED_BELOW.get(folder, (set(), set()))
        if root not in at_once and not (imported.is_lazy and root in lazily):
            names = "".join(f", {name}" for name in sorted(at_once)), "".join(f", {name}" for name in sorted(lazily))
            yield f"{folder} imports {root}; it may import the standard library{names[0]}, and lazily nothing{names[1]}"
    if root in ("numba", "llvmlite") and not path.startswith("chicle_elastic/solvers/kernels/"):
        yield f"imports {root}; numba stays in solvers/kernels, so that everything else starts without it"
    if root == "torch":
        parts = PurePosixPath(path).parts[2:]
        has_torch = folder == "solvers" and any(part.startswith(("local_sgd", "flat", "engines")) for part in parts)
        if LAYER_OF[here] < LAYER_OF[f"{FACE}.runtime"] and not has_torch:
            yield f"{folder} imports torch; only the torch solvers (local_sgd, flat, engines) and higher floors may"
        if folder == "estimators" and not imported.is_lazy:
            yield "imports torch at once; import it where it is used: `import estimators` loads no torch"
        for name in (*imported.module.split("."), *imported.names):
            yield from _torch_private(path, name)
    if root == "torchx" and folder != "torchx_components" and not (imported.is_lazy and folder in ("cluster", "cli")):
        yield "imports torchx; only torchx_components may, and cluster and cli lazily (the submitting side)"
    if root in OPTIONAL and not imported.is_lazy:
        yield f"imports {root} at once; optional packages are imported where they are used, so that import stays free"


def check_circles(files: Mapping[str, str]) -> list[Offence]:
    """Return the first circle of files that import each other, lazily or not; empty where there is none.

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


def _torch_private(path: str, name: str) -> Iterator[str]:
    if path != TORCH_PRIVATE and name.startswith("_") and not name.startswith("__"):
        yield f"uses torch's private {name}; private names of torch belong in cluster/agent/torch_private.py"


def _root_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute):
        node = node.value
    return getattr(node, "id", "")


def _walk(tree: ast.Module) -> Iterator[tuple[ast.AST, bool]]:
    """Yield all nodes, each with whether it is skipped when the file is imported."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, is_lazy = waiting.pop()
        yield node, is_lazy
        skipped: list[ast.AST] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            skipped = list(node.body) if isinstance(node.body, list) else [node.body]  # decorators run at once
        elif isinstance(node, ast.If) and getattr(node.test, "attr", getattr(node.test, "id", "")) == "TYPE_CHECKING":
            skipped = list(node.body)
        inside = {id(child) for child in skipped}
        waiting += [(child, is_lazy or id(child) in inside) for child in ast.iter_child_nodes(node)]
