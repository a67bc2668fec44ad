"""The slow, obvious decoder: one sequence, one head, one query at a time, in float64, with every activation by name.

It reads a ``HookedDecoder``'s weights by name and shares no code with it.
"""

from __future__ import annotations

import math
from collections import defaultdict

import torch
from torch import Tensor

from models.config import DecoderConfig
from models.decoder import HookedDecoder


def decode(model: HookedDecoder, tokens: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return logits ``[batch, pos, d_vocab]`` and every hook's activation."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    runs = [_Run(model.cfg, weights) for _ in tokens]
    logits = torch.stack([run.logits(row.tolist()) for run, row in zip(runs, tokens, strict=True)])
    return logits, {name: torch.stack([run.seen[name] for run in runs]) for name in runs[0].seen}


class _Run:
    """One sequence through one model."""

    def __init__(self, cfg: DecoderConfig, weights: dict[str, Tensor]) -> None:
        self.cfg, self.weights = cfg, weights
        self.seen: dict[str, Tensor] = {}

    def see(self, name: str, value: Tensor) -> Tensor:
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
        cfg = self.cfg
        self.see(f"{name}.hook_resid_pre", pre)
        for reader, n_heads in (("q", cfg.n_heads), ("k", cfg.n_kv_heads), ("v", cfg.n_kv_heads)):
            self.see(f"{name}.hook_{reader}_input", torch.stack([pre] * n_heads, dim=1))
        self.see(f"{name}.attn.hook_attn_in", pre)
        reads_normalised = cfg.norm_position == "pre"
        attn_out = self.attention(f"{name}.attn", self.norm(f"{name}.ln1", pre) if reads_normalised else pre)
        self.see(f"{name}.hook_attn_out", attn_out)
        if cfg.parallel:
            post = pre + attn_out + self.mlp(name, pre)
            return self.see(f"{name}.hook_resid_post", post)
        mid = pre + attn_out if reads_normalised else self.norm(f"{name}.ln1", pre + attn_out)
        if cfg.attn_only:
            return self.see(f"{name}.hook_resid_post", mid)
        self.see(f"{name}.hook_resid_mid", mid)
        post = mid + self.mlp(name, mid)
        return self.see(f"{name}.hook_resid_post", post if reads_normalised else self.norm(f"{name}.ln2", post))

    def norm(self, name: str, x: Tensor) -> Tensor:
        if self.cfg.norm == "none":
            return x
        gain, bias = self.weights[f"{name}.w"], self.weights.get(f"{name}.b")
        scales, normalized = [], []
        for row in x:
            centred = row - sum(row) / len(row) if self.cfg.norm == "layer" else row
            scales.append(torch.sqrt(sum(centred**2) / len(row) + self.cfg.norm_eps)[None])
            normalized.append(centred / scales[-1])
        self.see(f"{name}.hook_scale", torch.stack(scales))
        out = gain * self.see(f"{name}.hook_normalized", torch.stack(normalized))
        return out if bias is None else out + bias

    def attention(self, name: str, x: Tensor) -> Tensor:
        cfg = self.cfg
        n = len(x)
        q = self.see(f"{name}.hook_q", self.linear(f"{name}.q", x).view(n, cfg.n_heads, cfg.d_head))
        k = self.see(f"{name}.hook_k", self.linear(f"{name}.k", x).view(n, cfg.n_kv_heads, cfg.d_head))
        v = self.see(f"{name}.hook_v", self.linear(f"{name}.v", x).view(n, cfg.n_kv_heads, cfg.d_head))
        if cfg.positions == "rotary":
            q = self.see(f"{name}.hook_rot_q", rotated(q, cfg))
            k = self.see(f"{name}.hook_rot_k", rotated(k, cfg))
        W_O = self.weights[f"{name}.o.weight"]
        per_head = defaultdict(list)
        for head in range(cfg.n_heads):
            kv_head = head // (cfg.n_heads // cfg.n_kv_heads)
            scores = torch.full((n, n), -math.inf, dtype=torch.float64)
            for query in range(n):
                for key in range(query + 1):
                    if cfg.sliding_window is None or query - key < cfg.sliding_window:
                        scores[query, key] = q[query, head] @ k[key, kv_head] / math.sqrt(cfg.d_head)
            pattern = torch.stack([softmax(row) for row in scores])
            z = torch.stack([sum(pattern[query, key] * v[key, kv_head] for key in range(n)) for query in range(n)])
            columns = W_O[:, head * cfg.d_head : (head + 1) * cfg.d_head]
            per_head["attn_scores"].append(scores)
            per_head["pattern"].append(pattern)
            per_head["z"].append(z)
            per_head["result"].append(torch.stack([columns @ row for row in z]))
        self.see(f"{name}.hook_attn_scores", torch.stack(per_head["attn_scores"]))
        self.see(f"{name}.hook_pattern", torch.stack(per_head["pattern"]))
        self.see(f"{name}.hook_z", torch.stack(per_head["z"], dim=1))
        out = sum(self.see(f"{name}.hook_result", torch.stack(per_head["result"], dim=1)).unbind(1))
        bias = self.weights.get(f"{name}.o.bias")
        return out if bias is None else out + bias

    def mlp(self, block: str, x: Tensor) -> Tensor:
        self.see(f"{block}.hook_mlp_in", x)
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


def angle_per_position(plane: int, cfg: DecoderConfig) -> float:
    """theta_j = base^(-2j / rotary_dim), stretched as the configuration says, in radians."""
    theta = cfg.rotary_base ** (-2 * plane / cfg.rotary_dim)
    scaling = cfg.rotary_scaling
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


def rotated(x: Tensor, cfg: DecoderConfig) -> Tensor:
    """Turn each plane by its angle as a complex number; ``x`` is ``[pos, head, d_head]``."""
    out = x.clone()
    half = cfg.rotary_dim // 2
    for plane in range(half):
        a, b = (plane, plane + half) if cfg.rotary_layout == "half" else (2 * plane, 2 * plane + 1)
        for pos in range(len(x)):
            turn = complex(
                math.cos(pos * angle_per_position(plane, cfg)), math.sin(pos * angle_per_position(plane, cfg))
            )
            for head in range(x.shape[1]):
                turned = complex(x[pos, head, a], x[pos, head, b]) * turn
                out[pos, head, a], out[pos, head, b] = turned.real, turned.imag
    return out
