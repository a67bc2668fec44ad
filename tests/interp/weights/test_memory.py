"""Nothing of size d_vocab x d_vocab is made, and the peaks that docstrings state hold on 49,152 tokens."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from interp.readout.logit_attribution import logit_attribution, source_attribution
from interp.weights import (
    composition_scores,
    eigenvalue_copying_scores,
    fired_memories,
    full_ov_circuit,
    full_qk_circuit,
    memories,
    output_copying_scores,
    positional_qk,
    singular_directions,
)

FLOAT = 4


class Memory(TorchDispatchMode):
    """Counts what operations allocate while it is entered: the largest tensor, and the most that lived at once."""

    def __init__(self, *models: torch.nn.Module) -> None:
        super().__init__()
        self.before = {p.untyped_storage().data_ptr() for model in models for p in model.parameters()}
        self.live: dict[int, tuple[StorageWeakRef, int]] = {}
        self.largest = self.peak = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor):
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in self.before:
                    self.live[storage.data_ptr()] = (StorageWeakRef(storage), storage.nbytes())
                    self.largest = max(self.largest, storage.nbytes())
        self.live = {at: (ref, size) for at, (ref, size) in self.live.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return out


def used(model, call: Callable[[], object]) -> Memory:
    with Memory(model) as memory:
        call()
    return memory


def test_the_count_sees_what_is_allocated():
    model = torch.nn.Linear(10, 10)
    memory = used(model, lambda: model.weight @ torch.zeros(10, 100))
    assert memory.largest == 10 * 100 * FLOAT
    assert memory.peak == 2 * 10 * 100 * FLOAT
    assert used(model, lambda: model.weight.T.detach()).peak == 0

    def one_after_the_other() -> None:
        for _ in range(5):
            torch.zeros(100)

    assert used(model, one_after_the_other).peak == 100 * FLOAT


@pytest.mark.smollm2
def test_the_stated_peaks_hold_on_smollm2(smollm2):
    cfg = smollm2.cfg
    n_heads, tokens = cfg.n_layers * cfg.n_heads, smollm2.to_tokens("The capital of France is")
    paris = smollm2.to_single_token(" Paris")
    factors = 2 * n_heads * cfg.d_model * cfg.d_head * FLOAT
    chunk = 4096 * cfg.d_model * FLOAT
    square = cfg.d_model**2 * FLOAT
    logits = cfg.d_vocab * FLOAT
    sample = torch.arange(100, 600)
    cache = 4 * tokens.numel() * cfg.n_layers * (cfg.d_mlp + cfg.n_heads * cfg.d_head) * FLOAT
    head_weights = 4 * cfg.n_heads * cfg.d_model * cfg.d_head * FLOAT
    stated = {
        "eigenvalue_copying_scores": (lambda: eigenvalue_copying_scores(smollm2), 3 * factors + square + 4 * chunk),
        "output_copying_scores": (lambda: output_copying_scores(smollm2), 2 * head_weights),
        "singular_directions": (lambda: singular_directions(smollm2, 17, 3), 2 * 2 * 5 * logits + 4 * chunk),
        "memories": (lambda: memories(smollm2, 20, [1, 2, 3]), 2 * 2 * 3 * logits + 4 * chunk),
        "full_ov_circuit": (lambda: full_ov_circuit(smollm2, 17, 3, sample), 3 * 500 * 500 * FLOAT + 2 * chunk),
        "full_qk_circuit": (
            lambda: full_qk_circuit(smollm2, 17, 3, sample, relative=1),
            4 * 500 * 500 * FLOAT + 2 * chunk,
        ),
        "positional_qk": (lambda: positional_qk(smollm2, 16, 0), 4 * chunk),
        "composition_scores": (
            lambda: composition_scores(smollm2, "K", later=["L17H3", "L18H6"], n_rotations=2),
            6 * factors + 10 * square,
        ),
        "logit_attribution": (lambda: logit_attribution(smollm2, tokens, paris, by="neuron"), 2 * logits + cache),
        "source_attribution": (lambda: source_attribution(smollm2, tokens, "L17H3", paris), 2 * logits + cache),
        "fired_memories": (
            lambda: fired_memories(smollm2, tokens, paris, n_memories=3),
            2 * 2 * 3 * logits + 5 * chunk,
        ),
    }
    for name, (call, limit) in stated.items():
        memory = used(smollm2, call)
        assert memory.largest < cfg.d_vocab * cfg.d_model * FLOAT, f"{name}: {memory.largest / 1e6:.1f} MB"
        assert memory.peak < limit, f"{name}: {memory.peak / 1e6:.1f} MB"
