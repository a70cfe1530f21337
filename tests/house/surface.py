"""The public names of every public module, read from the sources without importing them.

A module is public when no part of its dotted name begins with an underscore. Its public names are its `__all__`, or
without one the classes, functions and constants that it defines itself under a name without a leading underscore.

Run as a program (`make surface`) it writes them to surface.txt.
"""

import ast
from pathlib import Path

from tests.house.floors import module_of
from tests.house.sources import product_files

SURFACE = Path(__file__).with_name("surface.txt")


def public_names(source: str) -> list[str]:
    """Public names of one module, sorted."""
    tree = ast.parse(source)
    listed = listed_names(tree)
    if listed is not None:
        return sorted(listed)
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return sorted(name for name in names if not name.startswith("_"))


def listed_names(tree: ast.Module) -> list[str] | None:
    """The value of `__all__`, or None where there is none."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            value: list[str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            return list(value)
    return None


def surface_lines(files: dict[str, str]) -> list[str]:
    """One line per public module that has public names: "module: name name ..."."""
    lines = []
    for path, source in files.items():
        module = module_of(path)
        names = public_names(source)
        if names and not any(part.startswith("_") for part in module.split(".")):
            lines.append(f"{module}: {' '.join(names)}")
    return sorted(lines)


if __name__ == "__main__":
    SURFACE.write_text("\n".join(surface_lines(product_files())) + "\n", encoding="utf-8")
    print(f"wrote {SURFACE.name}; look at its diff before you commit it")
