"""Where TransformerLens has the same quantity, ours stands beside its: composition, direct attribution, SVD, folding.

Importing TransformerLens takes seconds, so all of the comparisons are in this file.
"""

from __future__ import annotations

import warnings

import pytest
import torch

from interp.readout.logit_attribution import logit_attribution
from interp.weights import composition_scores, eigenvalue_copying_scores, ov_circuit, qk_circuit, stacked_ov
from models.loading import load_model
from models.loading.fold import fold
from tests.models.loading.families import build, save
from tests.models.loading.test_tokenizer import byte_tokenizer

IDS = torch.randint(0, 256, (2, 9), generator=torch.Generator().manual_seed(0))
CASES = {"gpt2": ("GPT2", {}), "llama": ("Llama", {})}


@pytest.fixture(scope="module", params=CASES)
def pair(request, tmp_path_factory):
    """Return one model twice: loaded by us and folded, and booted by TransformerLens in compatibility mode."""
    from transformer_lens.model_bridge import TransformerBridge

    family, settings = CASES[request.param]
    folder = save(build(family, vocab_size=300, **settings), tmp_path_factory.mktemp("model") / "model")
    byte_tokenizer(bos=True, prepends=True).save_pretrained(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = TransformerBridge.boot_transformers(str(folder), device="cpu", dtype=torch.float32)
        theirs.enable_compatibility_mode(disable_warnings=True)
    ours = load_model(folder)
    return fold(ours, centre_writes=ours.cfg.norm == "layer"), theirs.requires_grad_(False)


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-4 * float(expected.abs().max()))


def test_folded_weights_are_theirs(pair):
    ours, theirs = pair
    biases = ("b_O", "b_out") if ours.cfg.out_bias else ()
    for name in ("W_E", "W_O", "W_out", *biases):
        close(getattr(ours, name), getattr(theirs, name))
    close(ours(IDS), theirs(IDS))


@pytest.mark.parametrize("kind", ["Q", "K", "V"])
def test_composition_scores_are_theirs(pair, kind):
    ours, theirs = pair
    rotary = ours.cfg.positions == "rotary" and kind != "V"
    got = composition_scores(ours, kind, relative=0 if rotary else None, n_rotations=2)  # theirs rotates nothing
    expected = theirs.all_composition_scores(kind).scores
    later = got.scores.isfinite()
    assert later.sum() == ours.cfg.n_heads**2
    close(got.scores[later], expected[later])


def test_direct_attributions_of_heads_and_mlps_are_theirs(pair):
    ours, theirs = pair
    answer, wrong = torch.tensor([5, 80]), torch.tensor([17, 3])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs.set_use_attn_result(True)
        _, cache = theirs.run_with_cache(IDS)
        stack, labels = cache.get_full_resid_decomposition(expand_neurons=False, return_labels=True, pos_slice=-1)
        expected = cache.logit_attrs(stack, answer, incorrect_tokens=wrong, pos_slice=-1)
    found = logit_attribution(ours, IDS, answer, wrong)
    assert len(labels) > 10
    names = {f"{layer}_mlp_out": f"L{layer} mlp" for layer in range(2)} | {"embed": "embed", "pos_embed": "pos_embed"}
    compared = 0
    for label, value in zip(labels, expected, strict=True):
        name = names.get(label, label)
        if name in found.labels:
            close(found.values[found.labels.index(name)], value)
            compared += 1
    assert compared >= 2 * ours.cfg.n_heads + 3


def test_svd_and_eigenvalues_are_theirs(pair):
    from transformer_lens import FactoredMatrix as Theirs

    ours, _ = pair
    relative = 0 if ours.cfg.positions == "rotary" else None
    for matrix in (ov_circuit(ours, 0, 1).matrix, qk_circuit(ours, 1, 2, relative=relative).matrix, stacked_ov(ours)):
        other = Theirs(matrix.A, matrix.B)
        u, s, v = matrix.svd()
        close(s, other.S)
        close(u.abs(), other.U.abs())
        close(v.abs(), other.V.abs())
        close(matrix.norm(), other.norm())
        close(matrix.eigenvalues().abs().sort(-1).values, other.eigenvalues.abs().sort(-1).values)


def test_copying_scores_from_their_weights(pair):
    ours, theirs = pair
    W_V = (
        theirs.W_V if theirs.W_V.shape[1] == ours.cfg.n_heads else theirs.W_V.repeat_interleave(ours.cfg.group_size, 1)
    )
    full = theirs.W_E @ W_V[1, 2] @ theirs.W_O[1, 2] @ theirs.W_U
    values = torch.linalg.eigvals(full)
    close(eigenvalue_copying_scores(ours)[1, 2], values.sum().real / values.abs().sum())
