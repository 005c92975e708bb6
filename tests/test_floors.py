"""The floors of the house: who may import whom, and what `import systolic` may cost."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

import systolic

ROOT = pathlib.Path(systolic.__file__).parent

GROUND = {
    "_errors",
    "_arguments",
    "_source",
    "_log",
    "_ranges",
    "_private_jax",
    "_page",
    "_format",
    "_svg",
    "_plots",
    "_page_style",
}
"""Modules without a package; any may be imported by all. The last four are parts of ``_page``."""

FLOORS = (
    {"target"},
    {"program"},
    {"data", "ops", "parallel"},
    {"check"},
    {"estimator"},
    {"serving", "rl", "tf"},
    {"cli"},
)
"""From the lowest. A package may import those below it; packages of one floor do not import each other."""

HEIGHT = {name: height for height, floor in enumerate(FLOORS) for name in floor}

LAZY = ("flax", "orbax", "grain", "tensorboardX", "rich", "equinox", "safetensors", "sklearn", "PIL")
"""Imported inside functions, or in modules that are imported so."""

OTHERS = ("tensorflow", "torch", "keras", "tf_keras")
"""Frameworks that a user may bring; never imported at the top of a module."""

MODULES = sorted(ROOT.rglob("*.py"))


def package_of(path: pathlib.Path) -> str:
    """The first name below ``systolic``: a package, or the stem of a module at the top."""
    first = path.relative_to(ROOT).parts[0]
    return first.removesuffix(".py")


def imports(path: pathlib.Path, top_only: bool = False) -> list[tuple[int, str]]:
    """(line, absolute dotted name) of every import; of ``from a import b`` both ``a`` and ``a.b`` where b is a module."""
    tree = ast.parse(path.read_text())
    nodes = list(top_level(tree)) if top_only else list(ast.walk(tree))
    found = []
    for node in nodes:
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = ["systolic", *path.relative_to(ROOT).parent.parts]
                base = ".".join([*here[: len(here) - node.level + 1], *([base] if base else [])])
            found += [
                (node.lineno, f"{base}.{alias.name}" if is_module(base, alias.name) else base) for alias in node.names
            ]
    return found


def top_level(tree: ast.AST):
    """Nodes that run when a module is imported: not those in functions, nor under TYPE_CHECKING."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from top_level(node)


def is_module(base: str, name: str) -> bool:
    if not base.startswith("systolic"):
        return False
    folder = ROOT.joinpath(*base.split(".")[1:])
    return (folder / f"{name}.py").exists() or (folder / name / "__init__.py").exists()


def own(name: str) -> list[str]:
    """Parts below ``systolic`` of a name of ours; empty for others, and for ``systolic`` itself."""
    parts = name.split(".")
    return parts[1:] if parts[0] == "systolic" else []


def where(path: pathlib.Path, line: int) -> str:
    return f"{path.relative_to(ROOT.parent)}:{line}"


def test_every_package_has_a_floor():
    packages = {package_of(path) for path in MODULES} - {"__init__", "__main__"}
    assert packages <= set(HEIGHT) | GROUND


def test_a_floor_imports_only_floors_below_it():
    faults = []
    for path in MODULES:
        package = package_of(path)
        if package in ("__init__", "__main__"):
            continue
        for line, name in imports(path):
            parts = own(name)
            if name == "systolic" and package != "cli":  # the roof stands on the whole house
                faults.append(f"{where(path, line)} imports all of systolic")
            if not parts or parts[0] in GROUND or parts[0] == package:
                continue
            if package in GROUND or HEIGHT[parts[0]] >= HEIGHT[package]:
                faults.append(f"{where(path, line)}: {package} imports {name}")
    assert not faults, "\n".join(faults)


def test_nobody_imports_a_private_module_of_another_package():
    faults = []
    for path in MODULES:
        package = package_of(path)
        for line, name in imports(path):
            parts = own(name)
            if len(parts) > 1 and parts[0] != package and any(part.startswith("_") for part in parts[1:]):
                faults.append(f"{where(path, line)} imports {name}")
    assert not faults, "\n".join(faults)


def test_the_top_imports_no_package_but_the_lowest():
    # Everything else is loaded on first use.
    assert {own(name)[0] for _, name in imports(ROOT / "__init__.py", top_only=True) if own(name)} == {
        "_errors",
        "target",
    }


@pytest.mark.parametrize("names", [OTHERS, LAZY[:5]], ids=["frameworks", "heavy libraries"])
def test_what_is_heavy_is_not_imported_at_the_top_of_a_module(names):
    faults = [
        f"{where(path, line)} imports {name}"
        for path in MODULES
        for line, name in imports(path, top_only=True)
        if name.split(".")[0] in names and package_of(path) not in ("serving", "rl", "tf")
    ]
    assert not faults, "\n".join(faults)


def test_importing_systolic_imports_nothing_heavy():
    script = f"""
import sys
import systolic
heavy = sorted({{name.split(".")[0] for name in sys.modules}} & set({LAZY + OTHERS + ("optax", "libtpu")!r}))
ours = sorted(name for name in sys.modules if name.startswith("systolic.") and name.count(".") == 1)
print(heavy, ours)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[] ['systolic._errors', 'systolic.target']"
    assert done.stderr == ""


def test_every_public_name_is_there_and_loads_on_first_use():
    for name in systolic.__all__:
        assert getattr(systolic, name) is not None
    assert set(systolic.__all__) == set(dir(systolic))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = systolic.nothing


def test_a_file_is_one_idea():
    # The house style is 100 to 250 lines. What is far beyond that holds two ideas.
    long = {str(p.relative_to(ROOT)): n for p in MODULES if (n := len(p.read_text().splitlines())) > 320}
    assert not long
