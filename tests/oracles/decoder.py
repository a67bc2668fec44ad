"""The slow, obvious decoder: one sequence, one head, one query at a time, in float64, with every activation by name.

It reads a ``HookedDecoder``'s weights by name and shares no code with it. What is added to an activation goes on to
everything that is computed from it, so that the effect of an edit is known too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from models.config import DecoderConfig
from models.decoder import HookedDecoder


def decode(
    model: HookedDecoder, tokens: Tensor, added: Mapping[str, Tensor] | None = None
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits ``[batch, pos, d_vocab]`` and every hook's activation, with ``added`` added to those it names."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    added = added or {}
    runs = [_Run(model.cfg, weights, {name: value[i] for name, value in added.items()}) for i in range(tokens.shape[0])]
    logits = torch.stack([run.logits(row.tolist()) for run, row in zip(runs, tokens, strict=True)])
    return logits, {name: torch.stack([run.seen[name] for run in runs]) for name in runs[0].seen}


class _Run:
    """One sequence through one model."""

    def __init__(self, cfg: DecoderConfig, weights: dict[str, Tensor], added: dict[str, Tensor]) -> None:
        self.cfg, self.weights, self.added = cfg, weights, added
        self.seen: dict[str, Tensor] = {}

    def see(self, name: str, value: Tensor) -> Tensor:
        if name in self.added:
            value = value + self.added[name]
        self.seen[name] = value
        return value

    def linear(self, name: str, x: Tensor) -> Tensor:
        out = torch.stack([self.weights[f"{name}.weight"] @ row for row in x])
        bias = self.weights.get(f"{name}.bias")
        return out if bias is None else out + bias

    def logits(self, tokens: list[int]) -> Tensor:
        cfg = self.cfg
        table = self.weights["embed.W_E"]
        embed = torch.stack([table[t] for t in tokens])
        if cfg.scale_embedding:
            embed = embed * math.sqrt(cfg.d_model)
        x = self.see("hook_embed", embed)
        if cfg.positions == "learned":
            x = x + self.see("hook_pos_embed", self.weights["pos_embed.W_pos"][: len(tokens)])
        elif cfg.positions == "sinusoidal":
            rows = [sinusoid(pos, cfg.d_model) for pos in range(len(tokens))]
            x = x + self.see("hook_pos_embed", torch.stack(rows))
        for layer in range(cfg.n_layers):
            x = self.block(f"blocks.{layer}", x)
        if cfg.norm_position == "pre":
            x = self.norm("ln_final", x)
        unembedding = table if cfg.tied else self.weights["unembed.weight"]
        logits = torch.stack([unembedding @ row for row in x])
        return logits + self.weights["unembed.bias"] if cfg.unembed_bias else logits

    def block(self, name: str, pre: Tensor) -> Tensor:
        pre = self.see(f"{name}.hook_resid_pre", pre)
        attn_out = self.see(f"{name}.hook_attn_out", self.attention(name, pre))
        reads_normalised = self.cfg.norm_position == "pre"
        if self.cfg.parallel:
            return self.see(f"{name}.hook_resid_post", pre + attn_out + self.mlp(name, pre))
        mid = pre + attn_out if reads_normalised else self.norm(f"{name}.ln1", pre + attn_out)
        if self.cfg.attn_only:
            return self.see(f"{name}.hook_resid_post", mid)
        mid = self.see(f"{name}.hook_resid_mid", mid)
        post = mid + self.mlp(name, mid)
        return self.see(f"{name}.hook_resid_post", post if reads_normalised else self.norm(f"{name}.ln2", post))

    def norm(self, name: str, x: Tensor, hooked: bool = True) -> Tensor:
        if self.cfg.norm == "none":
            return x
        gain, bias = self.weights[f"{name}.w"], self.weights.get(f"{name}.b")
        centred = torch.stack([row - row.sum() / len(row) for row in x]) if self.cfg.norm == "layer" else x
        scale = torch.stack([torch.sqrt((row**2).sum() / len(row) + self.cfg.norm_eps)[None] for row in centred])
        if hooked:
            scale = self.see(f"{name}.hook_scale", scale)
        normalized = centred / scale
        if hooked:
            normalized = self.see(f"{name}.hook_normalized", normalized)
        out = gain * normalized
        return out if bias is None else out + bias

    def attention(self, block: str, x: Tensor) -> Tensor:
        cfg, name, layer = self.cfg, f"{block}.attn", int(block.split(".")[1])
        window = own(cfg.sliding_window, layer)
        n, group_size = len(x), cfg.n_heads // cfg.n_kv_heads
        x = self.see(f"{name}.hook_attn_in", x)
        normed = self.norm(f"{block}.ln1", x) if cfg.norm_position == "pre" else x
        q = self.projected(block, "q", x, normed, cfg.n_heads)
        k = self.projected(block, "k", x, normed, cfg.n_kv_heads)
        v = self.projected(block, "v", x, normed, cfg.n_kv_heads)
        q, k = self.qk_norm(f"{name}.q_norm", q), self.qk_norm(f"{name}.k_norm", k)
        if cfg.positions == "rotary":
            q = self.see(f"{name}.hook_rot_q", rotated(q, cfg, layer))
            k = self.see(f"{name}.hook_rot_k", rotated(k, cfg, layer))

        scores = torch.full((cfg.n_heads, n, n), -math.inf, dtype=torch.float64)
        for head in range(cfg.n_heads):
            for query in range(n):
                for key in range(query + 1):
                    if window is None or query - key < window:
                        scores[head, query, key] = q[query, head] @ k[key, head // group_size] / math.sqrt(cfg.d_head)
        scores = self.see(f"{name}.hook_attn_scores", scores)

        pattern = torch.stack([torch.stack([softmax(row) for row in rows]) for rows in scores])
        pattern = self.see(f"{name}.hook_pattern", pattern)

        z = torch.zeros(n, cfg.n_heads, cfg.d_head, dtype=torch.float64)
        for head in range(cfg.n_heads):
            for query in range(n):
                z[query, head] = sum(pattern[head, query, key] * v[key, head // group_size] for key in range(n))
        z = self.see(f"{name}.hook_z", z)

        result = torch.zeros(n, cfg.n_heads, cfg.d_model, dtype=torch.float64)
        for head in range(cfg.n_heads):
            W_O = self.weights[f"{name}.o.weight"][:, head * cfg.d_head : (head + 1) * cfg.d_head]
            for query in range(n):
                result[query, head] = W_O @ z[query, head]
        out = sum(self.see(f"{name}.hook_result", result).unbind(1))
        bias = self.weights.get(f"{name}.o.bias")
        return out if bias is None else out + bias

    def projected(self, block: str, which: str, x: Tensor, normed: Tensor, n_heads: int) -> Tensor:
        """Queries, keys or values; a head whose copy of the stream was changed reads that copy through ln1 anew."""
        name = f"{block}.hook_{which}_input"
        copies = self.see(name, torch.stack([x] * n_heads, dim=1))
        if name not in self.added:
            heads = self.linear(f"{block}.attn.{which}", normed).view(len(x), n_heads, -1)
            return self.see(f"{block}.attn.hook_{which}", heads)
        heads = []
        for head in range(n_heads):
            own = copies[:, head]
            own = self.norm(f"{block}.ln1", own, hooked=False) if self.cfg.norm_position == "pre" else own
            heads.append(self.linear(f"{block}.attn.{which}", own).view(len(x), n_heads, -1)[:, head])
        return self.see(f"{block}.attn.hook_{which}", torch.stack(heads, dim=1))

    def qk_norm(self, name: str, x: Tensor) -> Tensor:
        """Divide each head by its own root mean square, or all heads of a position by theirs."""
        if self.cfg.qk_norm == "none":
            return x
        by_head = self.cfg.qk_norm == "head"
        scale = torch.zeros(len(x), x.shape[1] if by_head else 1, 1, dtype=torch.float64)
        for pos in range(len(x)):
            for head in range(scale.shape[1]):
                values = (x[pos, head] if by_head else x[pos]).flatten().tolist()
                scale[pos, head] = math.sqrt(sum(value**2 for value in values) / len(values) + self.cfg.norm_eps)
        normalized = self.see(f"{name}.hook_normalized", x / self.see(f"{name}.hook_scale", scale))
        return normalized * self.weights[f"{name}.w"]

    def mlp(self, block: str, x: Tensor) -> Tensor:
        x = self.see(f"{block}.hook_mlp_in", x)
        if self.cfg.norm_position == "pre":
            x = self.norm(f"{block}.ln2", x)
        name = f"{block}.mlp"
        if self.cfg.gated:
            pre = self.see(f"{name}.hook_pre", self.linear(f"{name}.gate", x))
            linear = self.see(f"{name}.hook_pre_linear", self.linear(f"{name}.inp", x))
            post = activation(self.cfg.act, pre) * linear
        else:
            post = activation(self.cfg.act, self.see(f"{name}.hook_pre", self.linear(f"{name}.inp", x)))
        out = self.linear(f"{name}.out", self.see(f"{name}.hook_post", post))
        return self.see(f"{block}.hook_mlp_out", out)


def softmax(scores: Tensor) -> Tensor:
    """exp(s_i) / sum_j exp(s_j), shifted so that nothing overflows."""
    weights = (scores - scores.max()).exp()
    return weights / weights.sum()


def activation(kind: str, x: Tensor) -> Tensor:
    """The four activation functions, from their definitions."""
    if kind == "relu":
        return torch.where(x > 0, x, torch.zeros_like(x))
    if kind == "silu":
        return x / (1 + torch.exp(-x))
    if kind == "gelu":
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2
    assert kind == "gelu_tanh"
    return x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2


def sinusoid(pos: int, d_model: int) -> Tensor:
    """PE(pos, 2i) = sin(pos / 10000^(2i/d)), PE(pos, 2i + 1) = cos(the same)."""
    row = []
    for i in range(d_model // 2):
        angle = pos / 10_000 ** (2 * i / d_model)
        row += [math.sin(angle), math.cos(angle)]
    return torch.tensor(row, dtype=torch.float64)


def own(value: object, layer: int) -> Any:
    """An option's value in one layer: the one of all layers, or this layer's."""
    return value[layer] if isinstance(value, tuple) else value


def angle_per_position(plane: int, cfg: DecoderConfig, layer: int = 0) -> float:
    """theta_j = base^(-2j / rotary_dim), stretched as the configuration says, in radians."""
    theta = own(cfg.rotary_base, layer) ** (-2 * plane / cfg.rotary_dim)
    scaling = own(cfg.rotary_scaling, layer)
    if scaling is None:
        return theta
    if scaling.kind == "linear":
        return theta / scaling.factor
    turns = scaling.original_n_ctx * theta / (2 * math.pi)  # how often this plane turns in the original context
    if turns < scaling.low_freq:
        return theta / scaling.factor
    if turns > scaling.high_freq:
        return theta
    share = (turns - scaling.low_freq) / (scaling.high_freq - scaling.low_freq)
    return (1 - share) * theta / scaling.factor + share * theta


def rotated(x: Tensor, cfg: DecoderConfig, layer: int = 0) -> Tensor:
    """Turn each plane by its angle as a complex number; ``x`` is ``[pos, head, d_head]``."""
    out = x.clone()
    half = cfg.rotary_dim // 2
    for plane in range(half):
        a, b = (plane, plane + half) if cfg.rotary_layout == "half" else (2 * plane, 2 * plane + 1)
        for pos in range(len(x)):
            angle = pos * angle_per_position(plane, cfg, layer)
            turn = complex(math.cos(angle), math.sin(angle))
            for head in range(x.shape[1]):
                turned = complex(x[pos, head, a], x[pos, head, b]) * turn
                out[pos, head, a], out[pos, head, b] = turned.real, turned.imag
    return out
