"""Layout of the source: file names, docstrings, no import cycles, no stray tasks."""

import ast
from collections.abc import Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TREES = ("clairvoyant_cli", "tui", "predictor", "profiles")
GENERIC_NAMES = {"utils", "util", "helpers", "common", "base", "manager", "misc"}


def sources() -> list[Path]:
    return [path for tree in TREES for path in (ROOT / tree).rglob("*.py")]


def test_no_file_has_a_generic_name() -> None:
    assert not {path.stem for path in sources()} & GENERIC_NAMES


def test_every_module_has_a_docstring() -> None:
    for path in sources():
        text = path.read_text().lstrip()
        assert text.startswith(('"""', "r'''", 'r"""')), path


def test_no_task_is_started_outside_a_group() -> None:
    # The exception of a bare task is lost; the daemon owns one task group.
    for path in (ROOT / "clairvoyant_cli" / "proxy").rglob("*.py"):
        text = path.read_text()
        assert "asyncio.create_task" not in text, path
        assert "ensure_future" not in text, path


def imported(node: ast.AST, modules: Collection[str]) -> Iterator[str]:
    """Yield which of `modules` a module imports, also for type checking; not the imports in functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            of = f"{child.module}." if isinstance(child, ast.ImportFrom) else ""
            named = (of + each.name for each in child.names)
            yield from {name if name in modules else name.rpartition(".")[0] for name in named} & {*modules}
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from imported(child, modules)


def test_no_import_cycles() -> None:
    dotted = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in sources()}
    modules = {name.removesuffix(".__init__"): path for name, path in dotted.items()}
    # CycleError names the modules of a cycle.
    TopologicalSorter(
        {name: set(imported(ast.parse(path.read_text()), modules)) for name, path in modules.items()}
    ).prepare()
