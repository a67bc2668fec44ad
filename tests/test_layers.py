"""Who may import whom: only towards a lower number, as the table of layers in CONTRIBUTING.md says."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# the longest prefix counts; modules of one layer may import each other
LAYERS = {
    "models.config": 1,
    "models.errors": 1,
    "models.hooks": 2,
    "models.parts": 3,
    "models.tokens": 3,
    "models": 4,
    "models.loading": 5,
    "models.training": 5,
    "interp": 6,
    "interp.weights": 7,
    "interp.readout": 7,
    "interp.interventions": 7,
    "interp.detectors": 7,
    "interp.plots": 8,
    "interp.report": 9,
    "analyses": 10,
}
OPEN_TO_INTERP = ("models.protocol", "models.hooks", "models.parts", "models.config", "models.errors", "models.tokens")
LOADERS_ONLY = ("transformers", "transformer_lens", "gguf")


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for top in ("models", "interp", "analyses") for path in (ROOT / top).rglob("*.py")}


def is_inside(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def layer(module: str) -> int:
    return LAYERS[max((prefix for prefix in LAYERS if is_inside(module, prefix)), key=len)]


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def shows_itself(node: ast.AST) -> bool:
    """Return whether this is a method by which a result draws or shows itself: it asks the layer above, when called."""
    return isinstance(node, ast.FunctionDef) and node.name in ("plot", "_repr_html_")


def imports(source: str, *, top_level_only: bool = False) -> set[str]:
    """Return the modules that a source imports when it is run; names for type checkers alone do not count."""
    found: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else node.module for name in full}
        elif is_type_checking(node) or shows_itself(node) or (top_level_only and isinstance(node, ast.FunctionDef)):
            continue
        waiting += ast.iter_child_nodes(node)
    return found


@pytest.mark.parametrize("module", sorted(MODULES))
def test_imports_go_towards_a_lower_layer(module: str) -> None:
    for imported in imports(MODULES[module].read_text()):
        if imported in MODULES and module not in ("models", "interp"):  # these two only gather the public names
            assert layer(imported) <= layer(module), f"{module} imports {imported}, which stands above it"


@pytest.mark.parametrize("module", [name for name in sorted(MODULES) if is_inside(name, "interp")])
def test_interp_depends_on_the_protocol_not_on_a_model(module: str) -> None:
    for imported in imports(MODULES[module].read_text()):
        if is_inside(imported, "models"):
            assert any(is_inside(imported, allowed) for allowed in OPEN_TO_INTERP), f"{module} imports {imported}"


@pytest.mark.parametrize("module", sorted(MODULES))
def test_only_loaders_import_other_frameworks_and_only_when_called(module: str) -> None:
    source = MODULES[module].read_text()
    within = imports(source, top_level_only=is_inside(module, "models.loading"))
    for imported in within:
        assert imported.split(".")[0] not in LOADERS_ONLY, f"{module} imports {imported}"


def test_the_reader_of_imports_sees_what_runs() -> None:
    source = (
        "from typing import TYPE_CHECKING\nimport a.b\nfrom models import config, HookedDecoder\n"
        "if TYPE_CHECKING:\n    import unseen\ndef f():\n    from late import g\n"
    )
    assert imports(source) == {"typing", "a.b", "models.config", "models", "late"}
    assert imports(source, top_level_only=True) == {"typing", "a.b", "models.config", "models"}
    assert (layer("models.decoder"), layer("models.hooks.point"), layer("interp.plots.style")) == (4, 2, 8)
