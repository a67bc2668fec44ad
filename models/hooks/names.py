"""Every hook name with its axes: the one table from which documentation, checks and tests are made.

The names are TransformerLens's classic ones. A name is listed for a configuration only where it lies on the path
from tokens to logits, so that changing the activation changes the output: ``hook_pos_embed`` is not listed for a
rotary model, ``hook_resid_mid`` not for a parallel block.

Vocabulary of axes (also used in ``Float[Tensor, "batch pos d_model"]`` annotations):

=============  ==========================================================
batch          sequences
pos            columns of the token tensor; absolute positions are ``hook.positions``
query_pos      columns that attend
key_pos        columns attended to (with a KV cache, all columns so far)
head           query heads
kv_head        key/value heads; query head h reads kv head h // group_size
d_model, d_head, d_mlp, d_vocab   widths
one            a broadcast axis of length 1
=============  ==========================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from models.config import DecoderConfig, EncoderDecoderConfig, StackConfig

RESIDUAL = "batch pos d_model"


@dataclass(frozen=True)
class HookSpec:
    """One hook: its full name, its axes from the vocabulary above, and what it holds."""

    name: str
    axes: tuple[str, ...]
    meaning: str


class HookNames(tuple[str, ...]):
    """All hook names of a model, in the order of the forward pass; printing it shows the table with axes."""

    specs: Mapping[str, HookSpec]

    def __new__(cls, specs: Mapping[str, HookSpec]) -> HookNames:
        names = super().__new__(cls, specs)
        names.specs = specs
        return names

    def __str__(self) -> str:
        rows = [(spec.name, f"[{', '.join(spec.axes)}]", spec.meaning) for spec in self.specs.values()]
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{name:<{widths[0]}}  {axes:<{widths[1]}}  {meaning}" for name, axes, meaning in rows)


@dataclass(frozen=True)
class _Row:
    suffix: str
    axes: str
    meaning: str
    listed: Callable[[StackConfig], bool] = lambda cfg: True


def _pre(cfg: StackConfig) -> bool:
    return cfg.norm_position == "pre"


def _post(cfg: StackConfig) -> bool:
    return cfg.norm_position == "post"


def _normed(cfg: StackConfig) -> bool:
    return cfg.norm != "none"


def _rotary(cfg: StackConfig) -> bool:
    return cfg.positions == "rotary"


def _has_mlp(cfg: StackConfig) -> bool:
    return not cfg.attn_only


def _norm_rows(name: str, reads: str, where: Callable[[StackConfig], bool] = _pre) -> list[_Row]:
    def listed(cfg: StackConfig) -> bool:
        return _normed(cfg) and where(cfg)

    return [
        _Row(f"{name}.hook_scale", "batch pos one", f"the divisor of {reads}", listed),
        _Row(f"{name}.hook_normalized", RESIDUAL, f"{reads}, centred and divided, before gain and bias", listed),
    ]


def _qk_norm_rows(name: str, axes: str, what: str) -> list[_Row]:
    own, flat = axes.replace("d_head", "one"), "batch pos one one"
    return [
        _Row(f"{name}.hook_scale", own, f"the divisor of each head's {what}", lambda cfg: cfg.qk_norm == "head"),
        _Row(f"{name}.hook_scale", flat, f"the divisor of all {what}", lambda cfg: cfg.qk_norm == "flat"),
        _Row(f"{name}.hook_normalized", axes, f"{what}, divided, before the gain", lambda cfg: cfg.qk_norm != "none"),
    ]


def _attention_rows(name: str, *, rotary: bool) -> list[_Row]:
    head, kv_head = "batch pos head d_head", "batch pos kv_head d_head"
    rows = [
        _Row("hook_q", head, "queries"),
        *_qk_norm_rows("q_norm", head, "queries"),
        _Row("hook_k", kv_head, "keys"),
        *_qk_norm_rows("k_norm", kv_head, "keys"),
        _Row("hook_v", kv_head, "values"),
    ]
    if rotary:
        rows += [
            _Row("hook_rot_q", head, "queries, rotated", _rotary),
            _Row("hook_rot_k", kv_head, "keys, rotated", _rotary),
        ]
    rows += [
        _Row(
            "hook_attn_scores", "batch head query_pos key_pos", "q.k / sqrt(d_head), masked with -inf; at least float32"
        ),
        _Row("hook_pattern", "batch head query_pos key_pos", "softmax of the scores over key_pos"),
        _Row("hook_z", head, "pattern-weighted sum of values"),
        _Row("hook_result", "batch pos head d_model", "z W_O: what each head writes, without b_O"),
    ]
    return [_Row(f"{name}.{row.suffix}", row.axes, row.meaning, row.listed) for row in rows]


_MLP_ROWS = [
    _Row("mlp.hook_pre", "batch pos d_mlp", "before the activation function (the gate of a gated MLP)"),
    _Row("mlp.hook_pre_linear", "batch pos d_mlp", "the ungated branch, x W_in", lambda cfg: cfg.gated),
    _Row("mlp.hook_post", "batch pos d_mlp", "neuron activations"),
    _Row("hook_mlp_out", RESIDUAL, "what the MLP adds"),
]


def _when_mlp(rows: list[_Row]) -> list[_Row]:
    def both(row: _Row) -> Callable[[StackConfig], bool]:
        return lambda cfg: _has_mlp(cfg) and row.listed(cfg)

    return [_Row(row.suffix, row.axes, row.meaning, both(row)) for row in rows]


def _block_rows(*, rotary: bool) -> list[_Row]:
    return [
        _Row("hook_resid_pre", RESIDUAL, "the stream entering the block"),
        _Row("attn.hook_attn_in", RESIDUAL, "the stream as attention reads it, before ln1"),
        *_norm_rows("ln1", "what attention reads"),
        _Row("hook_q_input", "batch pos head d_model", "the stream as each head's query reads it, before ln1"),
        _Row("hook_k_input", "batch pos kv_head d_model", "the stream as each kv head's key reads it, before ln1"),
        _Row("hook_v_input", "batch pos kv_head d_model", "the stream as each kv head's value reads it, before ln1"),
        *_attention_rows("attn", rotary=rotary),
        _Row("hook_attn_out", RESIDUAL, "what attention adds: the heads' results and b_O"),
        *_norm_rows("ln1", "the stream with attention's write", _post),
        _Row("hook_resid_mid", RESIDUAL, "the stream between", lambda cfg: _has_mlp(cfg) and not cfg.parallel),
        *_when_mlp(
            [
                _Row("hook_mlp_in", RESIDUAL, "the stream as the MLP reads it, before ln2"),
                *_norm_rows("ln2", "what the MLP reads"),
                *_MLP_ROWS,
                *_norm_rows("ln2", "the stream with the MLP's write", _post),
            ]
        ),
        _Row("hook_resid_post", RESIDUAL, "the stream leaving the block"),
    ]


def _cross_rows() -> list[_Row]:
    """The decoder block's second sublayer, between self-attention and the MLP."""
    return [
        _Row("hook_resid_mid", RESIDUAL, "the stream after self-attention"),
        _Row("cross_attn.hook_attn_in", RESIDUAL, "the stream as cross-attention's queries read it, before ln_cross"),
        *_norm_rows("ln_cross", "what cross-attention's queries read"),
        *_attention_rows("cross_attn", rotary=False),
        _Row("hook_cross_attn_out", RESIDUAL, "what cross-attention adds"),
        *_norm_rows("ln_cross", "the stream with cross-attention's write", _post),
        _Row("hook_resid_mid_cross", RESIDUAL, "the stream after cross-attention"),
    ]


def _expand(prefix: str, rows: list[_Row], cfg: StackConfig) -> Iterator[HookSpec]:
    for row in rows:
        if row.listed(cfg):
            yield HookSpec(prefix + row.suffix, tuple(row.axes.split()), row.meaning)


def _added_positions(cfg: StackConfig) -> bool:
    return cfg.positions in ("learned", "sinusoidal")


def _in_order(specs: list[HookSpec]) -> HookNames:
    return HookNames({spec.name: spec for spec in specs})


def decoder_hooks(cfg: DecoderConfig) -> HookNames:
    """Return the hooks of a ``HookedDecoder``.

    >>> cfg = DecoderConfig(n_layers=1, d_model=8, n_heads=2, d_vocab=5, n_ctx=4, attn_only=True, positions="rotary")
    >>> [name for name in decoder_hooks(cfg) if "rot" in name]
    ['blocks.0.attn.hook_rot_q', 'blocks.0.attn.hook_rot_k']
    """
    top = [
        _Row("hook_embed", RESIDUAL, "token embeddings"),
        _Row("hook_pos_embed", RESIDUAL, "position embeddings", _added_positions),
    ]
    specs = list(_expand("", top, cfg))
    for layer in range(cfg.n_layers):
        specs += _expand(f"blocks.{layer}.", _block_rows(rotary=True), cfg)
    specs += _expand("", _norm_rows("ln_final", "the last stream"), cfg)
    return _in_order(specs)


def encoder_decoder_hooks(cfg: EncoderDecoderConfig) -> HookNames:
    """Return the hooks of a ``HookedEncoderDecoder``; cross-attention is ``decoder.{l}.cross_attn...``."""
    specs: list[HookSpec] = []
    sides = (("encoder", "source", cfg.n_encoder_layers), ("decoder", "target", cfg.n_decoder_layers))
    for side, language, n_layers in sides:
        top = [
            _Row(f"hook_{language}_embed", RESIDUAL, f"{language} token embeddings"),
            _Row(f"hook_{language}_pos_embed", RESIDUAL, f"{language} position embeddings", _added_positions),
        ]
        specs += _expand("", top, cfg)
        rows = _block_rows(rotary=True)
        if side == "decoder":
            middle = next(i for i, row in enumerate(rows) if row.suffix == "hook_resid_mid")
            rows = [*rows[:middle], *_cross_rows(), *rows[middle + 1 :]]
        for layer in range(n_layers):
            specs += _expand(f"{side}.{layer}.", rows, cfg)
        specs += _expand("", _norm_rows(f"ln_final_{side}", f"the last {side} stream"), cfg)
    return _in_order(specs)
