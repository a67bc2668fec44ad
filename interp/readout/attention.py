"""Who attends to whom: every head's scores on one prompt, and the weights they make.

weight_ij = exp(s_ij) / sum_j' exp(s_ij'),      s_ij = q_i . k_j / sqrt(d_head), -inf where i may not see j
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from interp.checks import whole_number
from interp.decoders import check_decoder
from interp.finite import check_computed, check_model
from interp.precision import at_least_float32
from interp.results import Result, described
from interp.sites import Head
from models.errors import InputError
from models.protocol import ResumableModel

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class AttentionResult(Result):
    """The attention scores of some layers on one prompt.

    Attributes:
        tokens: the prompt, one string per token.
        layers: which layers; index i of ``scores`` is layer ``layers[i]``.
        scores: pre-softmax, ``[layer, head, query_pos, key_pos]`` float32; -inf where the query may not see the key.
        model, config, versions: what computed this.
    """

    tokens: tuple[str, ...]
    layers: tuple[int, ...]
    scores: np.ndarray
    model: str
    config: dict[str, Any]
    versions: dict[str, str]

    def __post_init__(self) -> None:
        self.scores.setflags(write=False)

    @property
    def n_heads(self) -> int:
        """Heads per layer."""
        return int(self.scores.shape[1])

    def head_scores(self, layer: int, head: int) -> np.ndarray:
        """Return one head's scores, ``[query_pos, key_pos]``. Raises InputError where there is no such head."""
        if layer not in self.layers or not 0 <= head < self.n_heads:
            raise InputError(
                f"no L{layer}H{head} in this result; it has heads 0 to {self.n_heads - 1} of layers "
                f"{', '.join(map(str, self.layers))}"
            )
        scores: np.ndarray = self.scores[self.layers.index(layer), head]
        return scores

    def pattern(self, layer: int, head: int) -> np.ndarray:
        """Return one head's weights, ``[query_pos, key_pos]``; every row adds up to 1."""
        scores = self.head_scores(layer, head)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        normalised: np.ndarray = weights / weights.sum(-1, keepdims=True)
        return normalised

    def to_frame(self, layer: int, head: int) -> pd.DataFrame:
        """Return one row per visible (query, key) of one head: both tokens, score and weight."""
        import pandas as pd

        scores, pattern = self.head_scores(layer, head), self.pattern(layer, head)
        query, key = np.nonzero(np.isfinite(scores))
        return pd.DataFrame(
            {
                "head": str(Head(layer, head)),
                "query": query,
                "key": key,
                "query_token": [self.tokens[i] for i in query],
                "key_token": [self.tokens[i] for i in key],
                "score": scores[query, key],
                "weight": pattern[query, key],
            }
        )

    def most_telling(self, n: int = 4) -> tuple[Head, ...]:
        """Return the heads whose last token looks hardest at one token that is neither the first nor itself."""
        last = self.scores[:, :, -1].astype(np.float64)
        weights = np.exp(last - last.max(-1, keepdims=True))
        weights /= weights.sum(-1, keepdims=True)
        inner = weights[..., 1:-1].max(-1) if weights.shape[-1] > 2 else weights.max(-1)
        best = np.argsort(-inner.ravel(), kind="stable")[:n]
        return tuple(Head(self.layers[int(i) // self.n_heads], int(i) % self.n_heads) for i in best)

    def headline(self) -> str:
        n = len(self.tokens)
        return f"attention of {self.model}, {len(self.layers)} layers × {self.n_heads} heads × {n} × {n} tokens"

    def plot(self, *, dark: bool = False) -> Figure:
        """Draw four telling heads; see ``interp.plots.plot_attention``."""
        from interp.plots import plot_attention

        return plot_attention(self, dark=dark)

    def summary_html(self) -> str:
        """Return what the last token looks at most in the most telling heads, as a table."""
        import pandas as pd

        rows = []
        for layer, head in self.most_telling():
            row = self.pattern(layer, head)[-1]
            key = int(row.argmax())
            rows.append(
                {"head": str(Head(layer, head)), "looks at": self.tokens[key], "position": key, "weight": row[key]}
            )
        table: str = pd.DataFrame(rows).to_html(index=False, float_format="{:.3g}".format)
        return f"<p>Attention from the last token, {escape(repr(self.tokens[-1]))}</p>{table}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "result": type(self).__name__,
            "schema_version": self.schema_version,
            "tokens": list(self.tokens),
            "layers": list(self.layers),
            "shape": list(self.scores.shape),
            "scores": base64.b64encode(zlib.compress(self.scores.astype("<f4").tobytes())).decode(),
            "model": self.model,
            "config": self.config,
            "versions": self.versions,
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        scores = np.frombuffer(zlib.decompress(base64.b64decode(values["scores"])), dtype="<f4")
        return cls(
            tokens=tuple(values["tokens"]),
            layers=tuple(values["layers"]),
            scores=scores.reshape(values["shape"]).astype(np.float32),
            model=values["model"],
            config=dict(values["config"]),
            versions=dict(values["versions"]),
        )


def attention(
    model: ResumableModel,
    tokens: Int[Tensor, "pos"] | str,
    *,
    layers: Sequence[int] | None = None,
    prepend_bos: bool | None = None,
) -> AttentionResult:
    """Run one prompt and keep every head's scores.

    Memory: layers x heads x pos x pos float32 numbers, and the same again for one layer.

    Args:
        tokens: one prompt, ids or text.
        layers: which layers; None for all.
        prepend_bos: for text, see ``to_tokens``.

    Raises:
        InputError: several prompts, a layer out of range or named twice, a model that is no ``HookedDecoder``.
        NonFiniteError: NaN or inf, with the first hook at which it appears.
    """
    check_decoder(model)
    ids, real = model.prepare(tokens, None, prepend_bos)
    if len(ids) != 1 or real is not None:
        raise InputError(f"attention is shown for one prompt at a time; got {len(ids)}")
    chosen = _chosen(layers, len(model.blocks))
    check_model(model, ids)
    kept = np.empty((len(chosen), model.cfg.n_heads, ids.shape[1], ids.shape[1]), dtype=np.float32)

    def keep(scores: Tensor, hook: Any) -> None:
        layer = int(hook.name.split(".")[1])
        kept[chosen.index(layer)] = at_least_float32(scores[0]).float().cpu().numpy()

    with torch.inference_mode():
        hooks = [(f"blocks.{layer}.attn.hook_attn_scores", keep) for layer in chosen]
        model.run_with_hooks(ids, fwd_hooks=hooks, return_type=None)
    seen = np.where(np.isneginf(kept), 0, kept)  # -inf is what a query may not see
    check_computed(model, ids, computed={"the scores": seen})
    return AttentionResult(
        tokens=tuple(model.to_str_tokens(ids[0])),
        layers=chosen,
        scores=kept,
        **described(model),
    )


def _chosen(layers: Sequence[int] | None, n_layers: int) -> tuple[int, ...]:
    """Return the layers that are meant. Raises InputError on anything but layers of the model, each once."""
    if layers is None:
        return tuple(range(n_layers))
    if isinstance(layers, str) or not isinstance(layers, Iterable):
        raise InputError(f"layers is {layers!r}; expected a list of layers, such as [0, {n_layers - 1}]")
    given = list(layers)
    for layer in given:
        whole_number(layer, "a layer", None)
    chosen = tuple(int(layer) for layer in given)
    if not chosen or not all(0 <= layer < n_layers for layer in chosen):
        raise InputError(f"layers is {list(chosen)}; this model has layers 0 to {n_layers - 1}")
    if len(set(chosen)) < len(chosen):
        raise InputError(f"layers is {list(chosen)}; name each layer once")
    return chosen
