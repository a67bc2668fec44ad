"""The naive loop: one whole run per cell, with hooks that say in full what is replaced by what.

It is the definition of a patching or ablation sweep. It knows nothing of grids, wavefronts or sites of the product.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

HOOKS = {
    "resid_pre": "hook_resid_pre",
    "resid_mid": "hook_resid_mid",
    "resid_post": "hook_resid_post",
    "attn_out": "hook_attn_out",
    "mlp_out": "hook_mlp_out",
    "mlp_post": "mlp.hook_post",
    "q": "attn.hook_q",
    "k": "attn.hook_k",
    "v": "attn.hook_v",
    "z": "attn.hook_z",
    "result": "attn.hook_result",
    "pattern": "attn.hook_pattern",
}


def sweep(
    model: Any,
    tokens: Tensor,
    instead: Mapping[str, Tensor],
    site: str,
    over: Sequence[str],
    judge: Callable[[Tensor], Tensor],
    *,
    real: Tensor | None = None,
    neuron_groups: int | None = None,
    frozen: Mapping[str, Tensor] | None = None,
    renormalise: bool = False,
) -> np.ndarray:
    """Return the judgement of every cell, ``[*over, batch]``.

    Args:
        model: runs with hooks.
        tokens: the run that is changed.
        instead: by hook name, what the replaced entries become.
        site, over: as the product's.
        judge: from logits to one number per example.
        real: attention mask.
        neuron_groups: groups of neighbouring neurons.
        frozen: by hook name, patterns that every layer is held to.
        renormalise: divide the rows of a changed pattern by their sums.
    """
    cfg = model.cfg
    width = tokens.shape[1]
    groups = np.array_split(np.arange(cfg.d_mlp), neuron_groups or cfg.d_mlp) if "neuron" in over else []
    sizes = {
        "layer": cfg.n_layers,
        "pos": width,
        "dest_pos": width,
        "src_pos": width,
        "head": cfg.n_heads,
        "kv_head": cfg.n_kv_heads,
        "neuron": len(groups),
    }
    shape = [sizes[axis] for axis in over]
    found = np.zeros([*shape, len(tokens)])
    for cell in itertools.product(*map(range, shape)):
        where = dict(zip(over, cell, strict=True))
        layers = [where["layer"]] if "layer" in where else range(cfg.n_layers)
        hooks: list[Any] = []
        if frozen is not None:
            hooks += [(name, _put(pattern)) for name, pattern in frozen.items()]
        for layer in layers:
            name = f"blocks.{layer}.{HOOKS[site]}"
            hooks.append((name, _replace(site, where, instead[name], groups, renormalise)))
        logits = model.run_with_hooks(tokens, attention_mask=real, fwd_hooks=hooks)
        found[cell] = judge(logits).double().numpy()
    return found


def _put(pattern: Tensor) -> Callable[..., Tensor]:
    return lambda value, hook: pattern


def _replace(
    site: str, where: Mapping[str, int], instead: Tensor, groups: Sequence[np.ndarray], renormalise: bool
) -> Callable[..., Tensor]:
    """Return a hook that goes over every entry and asks whether it lies in the cell."""

    def hook(value: Tensor, hook: Any) -> Tensor:
        chosen = torch.ones(value.shape, dtype=torch.bool)
        names = {1: "head", 2: "dest_pos", 3: "src_pos"} if site == "pattern" else {1: "pos", 2: "last"}
        for axis, name in names.items():
            if name == "last":
                name = next((one for one in ("head", "kv_head", "neuron") if one in where), "")
            if name not in where:
                continue
            kept = [where[name]] if name != "neuron" else groups[where[name]].tolist()
            inside = torch.tensor([entry in kept for entry in range(value.shape[axis])])
            chosen &= inside.view([-1 if i == axis else 1 for i in range(value.ndim)])
        changed = torch.where(chosen, instead, value)
        if renormalise:
            sums = changed.sum(-1, keepdim=True)
            changed = changed / torch.where(sums == 0, 1.0, sums)
        return changed

    return hook


def last_real(real: Tensor | None, tokens: Tensor) -> list[int]:
    """Return the column of each example's last real token."""
    if real is None:
        return [tokens.shape[1] - 1] * len(tokens)
    return [max(column for column in range(tokens.shape[1]) if row[column]) for row in real.tolist()]
