"""The GPT-2 path from end to end: a toy that has the heads, saved as a Hugging Face GPT-2, given by its path."""

import json

import numpy as np
import torch
from einops import rearrange

from analyses.command import run
from analyses.induction import app
from interp import find_heads
from models.decoder import HookedDecoder
from models.loading import load_model, save_hugging_face
from models.loading.native import save_native


def with_as_many_heads_as_gpt2_would_have(toy):
    """The toy with its strongest heads alone, d_model / d_head of them per layer; the others are next to silent."""
    report = find_heads(toy, ["induction", "previous_token"], causal=False)
    best = np.maximum(report.scores("induction"), report.scores("previous_token"))
    n_heads = toy.cfg.d_model // toy.cfg.d_head
    kept = [sorted(np.argsort(-scores)[:n_heads].tolist()) for scores in best]
    smaller = HookedDecoder(toy.cfg.replace(n_heads=n_heads, n_kv_heads=n_heads), tokenizer=toy.tokenizer)
    weights = toy.state_dict()
    for layer, heads in enumerate(kept):
        for name in "qkv":
            for part in ("weight", "bias"):
                key = f"blocks.{layer}.attn.{name}.{part}"
                by_head = weights[key].unflatten(0, (toy.cfg.n_heads, toy.cfg.d_head))
                weights[key] = by_head[heads].flatten(0, 1)
        key = f"blocks.{layer}.attn.o.weight"
        by_head = rearrange(weights[key], "d_model (head d_head) -> head d_model d_head", head=toy.cfg.n_heads)
        weights[key] = rearrange(by_head[heads], "head d_model d_head -> d_model (head d_head)")
    smaller.load_state_dict(weights)
    return smaller


def test_a_toy_saved_as_a_hugging_face_gpt2_shows_the_same_heads(tmp_path, capsys):
    model = with_as_many_heads_as_gpt2_would_have(load_model("toy"))
    tokens = torch.randint(64, (2, 20), generator=torch.Generator().manual_seed(0))
    save_hugging_face(model, tmp_path / "gpt2")
    save_native(model, tmp_path / "native.safetensors", {})
    torch.testing.assert_close(load_model(str(tmp_path / "gpt2"))(tokens), model(tokens), atol=1e-4, rtol=1e-4)
    found = []
    for number, source in enumerate((tmp_path / "native.safetensors", tmp_path / "gpt2")):
        out = tmp_path / str(number)
        assert run(app, ["--model", str(source), "--out", str(out)]) == 0
        heads = json.loads((out / "induction.json").read_text())["heads"]
        found.append({(h["kind"], h["layer"], h["head"]): round(h["score"], 4) for h in heads if h["pattern"] == "yes"})
    assert found[0] == found[1]
    assert {kind for kind, _, _ in found[0]} == {"induction", "previous_token", "sink"}
