"""What users can write: the public names of the packages, the components of TorchX, and the command lines.

A package's public names are its `__all__`. Modules inside may change from release to release and are not listed.
Options of torchrun, which `python -m chicle_elastic.launch` has too, are torch's and not listed either.

Run as a program (`make surface`) it writes them to surface.txt.
"""

import argparse
import ast
import importlib
import tomllib
from pathlib import Path

from tests.house.sources import ROOT

SURFACE = Path(__file__).with_name("surface.txt")
FACES = ("chicle_elastic", "chicle_elastic.torch", "estimators")
COMPONENTS = "torchx_components/chicle.py"
COMPONENT_LINE = "torchx run "


def surface_lines() -> list[str]:
    """One line per package, component and command: "chicle inspect: --json --verify"."""
    found = {face: listed_names(ast.parse(init_of(face).read_text(encoding="utf-8"))) for face in FACES}
    components = components_of((ROOT / COMPONENTS).read_text(encoding="utf-8"))
    found["torchx_components"] = [f"chicle.{name}" for name in components]
    found |= {f"{COMPONENT_LINE}chicle.{name}": options for name, options in components.items()}
    plugins = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    found["torchx run -s"] = [name for name in plugins["torchx.schedulers"] if name.startswith("chicle")]
    found |= commands()
    return [f"{place}: {' '.join(sorted(names or []))}" for place, names in sorted(found.items())]


def init_of(face: str) -> Path:
    """Where a package lists its names."""
    return ROOT.joinpath(*face.split(".")) / "__init__.py"


def listed_names(tree: ast.Module) -> list[str] | None:
    """The value of `__all__`, or None where there is none."""
    for node in tree.body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and target.id == "__all__":
            value: list[str] = ast.literal_eval(node.value)  # type: ignore[attr-defined]
            return list(value)
    return None


def components_of(source: str) -> dict[str, list[str]]:
    """Functions that return what TorchX runs, with their arguments as TorchX's command line has them."""
    functions = {node.name: node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)}
    found = {}
    for name, function in functions.items():
        if function.returns is not None and ast.unparse(function.returns).endswith(".AppDef"):
            arguments = [*function.args.args, *function.args.kwonlyargs]
            if function.decorator_list:  # see `_with_options` there
                arguments += functions["app"].args.kwonlyargs
            found[name] = [option_of(argument.arg) for argument in arguments]
    return found


def option_of(name: str) -> str:
    """Of one letter or several."""
    return f"--{name}" if len(name) > 1 else f"-{name}"


def commands() -> dict[str, list[str]]:
    """Commands of `chicle`, and the options of each and of the launcher."""
    from torch.distributed.run import get_args_parser

    from chicle_elastic.cli.main import COMMANDS
    from chicle_elastic.cluster import options

    found = {"chicle": [*COMMANDS, "--version"]}
    for name, command in COMMANDS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(command.module).add_arguments(parser)
        found[f"chicle {name}"] = options_of(parser)
    found[options.PROGRAM] = sorted(set(options_of(options.parser())) - set(options_of(get_args_parser())))
    return found


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """Options by their long names; all have one."""
    return sorted(name for name in parser._option_string_actions if name.startswith("--") and name != "--help")


if __name__ == "__main__":
    SURFACE.write_text("\n".join(surface_lines()) + "\n", encoding="utf-8")
    print(f"wrote {SURFACE.name}; look at its diff before you commit it")
