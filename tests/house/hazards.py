"""Finds calls that no file below chicle_elastic/ may make (docs/design 6), and reads of the environment.

Bytes from a socket, a store or a file are never run: no pickle in any disguise, no `eval`, no `exec`. This finds the
ways by name; it is a guard against slips and not against malice.

One file may import pickling modules, `PICKLING_FILE`: a driver sends code of its user's to processes of its own, of the
same user on the same machine, in a sealed memory file that only they have. What comes from another host, from the
rendezvous store or from a disk does not pass through it.

The environment is read in `settings` alone. `testing` and `cli` may hand `os.environ` on as a whole.
"""

import ast
from collections.abc import Iterator

from tests.house.floors import Offence, imports_of

PICKLING_MODULES = ("pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib", "jsonpickle")
PICKLING_FILE = "chicle_elastic/cluster/local/user_code.py"
OBJECT_COLLECTIVES = (
    "all_gather_object",
    "gather_object",
    "broadcast_object_list",
    "scatter_object_list",
    "send_object_list",
    "recv_object_list",
)
ENVIRONMENT_NAMES = ("environ", "environb", "getenv", "getenvb", "putenv", "unsetenv")


def check_hazards(path: str, source: str) -> list[Offence]:
    """Offences of one file below chicle_elastic/ that could run foreign bytes."""
    tree = ast.parse(source, path)
    offences = [
        Offence(path, imported.line, f"imports {imported.module}; nothing here is pickled: use JSON or raw bytes")
        for imported in imports_of(path, tree)
        if (imported.root in PICKLING_MODULES and path != PICKLING_FILE)
        or (imported.module == "multiprocessing" and "reduction" in imported.names)
        or imported.module == "multiprocessing.reduction"
    ]
    for node in ast.walk(tree):
        offences += [Offence(path, getattr(node, "lineno", 1), text) for text in _hazards_at(node)]
    return offences


def _hazards_at(node: ast.AST) -> Iterator[str]:
    name = _name(node)
    if name in OBJECT_COLLECTIVES:
        yield f"uses {name}, which unpickles what peers send; use tensors of fixed layout"
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in OBJECT_COLLECTIVES:
                yield f"imports {alias.name}, which unpickles what peers send; use tensors of fixed layout"
            if node.module == "torch" and alias.name == "load":
                yield "imports torch.load under a bare name; call it as torch.load(..., weights_only=True)"
    if not isinstance(node, ast.Call):
        return
    called = _name(node.func)
    keywords = {keyword.arg: keyword.value for keyword in node.keywords}
    if isinstance(node.func, ast.Name) and called in ("eval", "exec"):
        yield f"calls {called}; text from outside is data, never code"
    is_torch_load = isinstance(node.func, ast.Attribute) and _name(node.func.value) == "torch" and called == "load"
    if is_torch_load and not _is_constant(keywords.get("weights_only"), True):
        yield "calls torch.load without weights_only=True, which unpickles"
    if "allow_pickle" in keywords and not _is_constant(keywords["allow_pickle"], False):
        yield "allows NumPy to unpickle; say allow_pickle=False"
    if called == "read_pickle":
        yield "calls read_pickle, which unpickles"


def check_environment(path: str, source: str) -> list[Offence]:
    """Offences of one file of the product that reads the environment itself."""
    if path == "chicle_elastic/settings.py":
        return []
    may_hand_on = path.startswith(("chicle_elastic/testing/", "chicle_elastic/cli/"))
    offends = _reads_one_variable if may_hand_on else _mentions_environment
    lines = {getattr(node, "lineno", 1) for node in ast.walk(ast.parse(source, path)) if offends(node)}
    advice = "a setting is an argument, then the environment, then a default, and chicle_elastic/settings.py reads it"
    return [Offence(path, line, f"reads the environment; {advice}") for line in sorted(lines)]


def _mentions_environment(node: ast.AST) -> bool:
    if isinstance(node, ast.ImportFrom):
        return node.module == "os" and any(alias.name in ENVIRONMENT_NAMES for alias in node.names)
    return isinstance(node, ast.Attribute) and _name(node.value) == "os" and node.attr in ENVIRONMENT_NAMES


def _reads_one_variable(node: ast.AST) -> bool:
    """`environ[...]`, `environ.get(...)`, `name in environ`, `getenv(...)`."""
    match node:
        case ast.Subscript(value=mapping, ctx=ast.Load()):
            return _name(mapping) == "environ"
        case ast.Compare(comparators=operands):
            return any(_name(operand) == "environ" for operand in operands)
        case ast.Call(func=ast.Attribute(value=mapping, attr="get" | "pop" | "setdefault")):
            return _name(mapping) == "environ"
        case _:
            return _name(node) in ("getenv", "getenvb")


def _name(node: ast.AST) -> str:
    """Last part of a dotted name, "" for other expressions."""
    return getattr(node, "attr", getattr(node, "id", "")) if isinstance(node, ast.Attribute | ast.Name) else ""


def _is_constant(node: ast.expr | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
