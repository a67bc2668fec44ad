"""The house rules that can be read off the files; who may import whom is in ``test_layers``."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from models.config import DecoderConfig, EncoderDecoderConfig

ROOT = Path(__file__).parents[1]
PACKAGES = ("models", "interp", "analyses")
SOURCES = sorted(path for top in PACKAGES for path in (ROOT / top).rglob("*.py"))
TESTS = sorted(path for top in ("tests", "benchmarks") for path in (ROOT / top).rglob("*.py"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", [*SOURCES, *TESTS], ids=name)
def test_a_file_is_one_concept(path):
    assert len(path.read_text().splitlines()) <= 350
    assert not re.search(r"util|helper|misc|common", path.stem)


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_a_module_says_what_it_is_for(path):
    source = path.read_text()
    assert ast.get_docstring(ast.parse(source))
    assert not re.search(r"\b(TODO|FIXME|XXX)\b", source)


# attributes of shape, which every tool may ask for
SHAPES = {"n_layers", "d_model", "n_heads", "n_kv_heads", "d_head", "d_mlp", "d_vocab", "n_ctx"}
OPTIONS = {field.name for kind in (DecoderConfig, EncoderDecoderConfig) for field in fields(kind)} - SHAPES


def options_read(source: str) -> set[str]:
    """Return the architecture options that a source reads of a configuration."""
    read = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value).split(".")[-1] in ("cfg", "config"):
            read.add(node.attr)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr"):
            read |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
    return read & OPTIONS


@pytest.mark.parametrize("path", [path for path in SOURCES if not path.is_relative_to(ROOT / "models")], ids=name)
def test_no_tool_asks_the_configuration_how_a_block_is_made(path):
    assert not options_read(path.read_text())


def test_a_tool_that_asks_is_seen():
    assert options_read("x = 1 if model.cfg.parallel else getattr(cfg, 'norm')") == {"parallel", "norm"}
    assert not options_read("model.cfg.n_heads + block.parallel")


@pytest.mark.parametrize("path", [path for path in SOURCES if "analyses" not in path.parts], ids=name)
def test_toolkit_functions_do_not_print_seed_or_pick_devices(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            assert called not in ("print", "input", "torch.manual_seed", "random.seed", "np.random.seed"), node.lineno
            assert not called.endswith((".cuda", "set_default_device", "set_default_dtype")), node.lineno
            assert called != "torch.cuda.is_available", node.lineno


@pytest.mark.parametrize("path", SOURCES, ids=name)
def test_d17_what_is_imported_is_a_declared_dependency_or_an_extra(path):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    extras = [*project["dependencies"], *optional["transformer-lens"]]
    if path.is_relative_to(ROOT / "benchmarks"):
        extras += optional["dev"]
    declared = {re.match(r"[\w-]+", requirement)[0].replace("-", "_") for requirement in extras}
    allowed = declared | set(sys.stdlib_module_names) | set(PACKAGES) | {"tokenizers"}  # a part of transformers
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        else:
            continue
        for module in modules:
            assert module.split(".")[0] in allowed, f"line {node.lineno}: {module}"


def test_d17_users_have_extras_for_transformer_lens_and_notebooks():
    optional = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(requirement.startswith("jupyterlab") for requirement in optional["notebook"])
    assert set(optional["transformer-lens"]) <= set(optional["dev"])
    source = (ROOT / "models" / "loading" / "bridge.py").read_text()
    assert "residscope[transformer-lens]" in source, "what is missing is named by its extra"


def test_importing_models_is_light():
    heavy = ("transformers", "transformer_lens", "gguf", "matplotlib", "IPython")
    check = f"import sys, models; print([name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", check], cwd=ROOT, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
