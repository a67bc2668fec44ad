"""README.md keeps its word: its Python runs, its hooks and axes exist, its commands and files are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from models import DecoderConfig
from models.hooks import decoder_hooks

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)


def test_the_python_runs_from_top_to_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(blocks("python"))
    assert code.count("load_model") >= 1
    scope: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), scope)
    printed = capsys.readouterr().out

    loss, without = map(float, re.findall(r"loss ([\d.]+), .* layer 0 ([\d.]+)", printed)[0])
    assert without > loss + 1  # the circuit starts in layer 0
    recovered = scope["found"].recovered()
    assert recovered.shape == (2, 10)
    assert recovered[0, 5] == pytest.approx(1)  # before the circuit, the one token that differs is the whole run
    assert (recovered[:, :5] == 0).all()  # and what stands before it is the same in both
    assert len(scope["report"].found("induction")) >= 1


def test_the_hook_table_is_the_models() -> None:
    cfg = DecoderConfig(
        n_layers=1, d_model=8, n_heads=2, n_kv_heads=1, d_vocab=5, n_ctx=4, positions="rotary", gated=True
    )
    specs = decoder_hooks(cfg).specs
    table = README.partition("### Hooks")[2].partition("\n## ")[0]
    shown: dict[str, tuple[str, ...]] = {}
    for names, axes in re.findall(r"^\| (`.*`) \| (.*) \|$", table, re.MULTILINE):
        for name in re.findall(r"`(.*?)`", names):
            shown[f"blocks.0.{name}"] = tuple(axes.split(", "))
    assert shown == {name: spec.axes for name, spec in specs.items() if name.startswith("blocks.")}
    outside = set(re.findall(r"`((?:hook_|ln_final)[\w.]*)`", table.partition("outside the blocks")[2]))
    learned = decoder_hooks(cfg.replace(positions="learned", rotary_dim=None))
    assert outside == {name for name in learned if not name.startswith("blocks.")}


def test_every_make_target_and_script_exists() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    commands = "\n".join(blocks("sh"))
    targets = set(re.findall(r"(?:^|`)make ([a-z0-9-]+)", commands + README, re.MULTILINE))
    assert {"induction", "test", "check", "smollm2"} <= targets
    for target in targets:
        assert re.search(rf"^{target}:.*## ", makefile, re.MULTILINE), f"make {target}"
    scripts = set(re.findall(r"python (\S+\.py)", README))
    assert len(scripts) >= 5
    for path in scripts | set(re.findall(r"\]\((?!http)([^)]+)\)", README)):
        assert (ROOT / path).is_file(), path
