"""A model run by TransformerLens, behind our interface.

``TransformerBridge`` runs the Hugging Face module itself and has hook points inside it. Ours are set into those, so
that hooks, caches, gradients and errors behave as on a ``HookedDecoder``. ``hook_names()`` lists what the bridge has,
seen in one short run; it lacks the per-head inputs and results. Masked scores are the dtype's lowest number there,
not -inf.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from models.config import DecoderConfig
from models.decoder import ModelInput, ReturnType
from models.errors import ConfigError, InputError, LoadError, UnsupportedModel
from models.hooks.module import HookedModule
from models.hooks.names import HookNames, HookSpec, decoder_hooks
from models.hooks.point import HookPoint, RunState
from models.loading import tokenizer
from models.loading.hugging_face import FAMILIES, configuration
from models.loading.quiet import quiet
from models.parts.loss import next_token_loss
from models.parts.positions import absolute_positions
from models.text import TextInterface, Tokenizer
from models.tokens import check_mask, check_tokens

# Where the bridge's point of our meaning has another name. Its own hook_resid_mid is the MLP's input alone: an edit
# there does not reach the stream by itself, see ``BridgedModel._middle``.
_OTHER_NAME = {"attn.hook_attn_in": "ln1.hook_in", "hook_resid_mid": "ln2.hook_in", "hook_mlp_in": "ln2.hook_in"}


def load_bridge(folder: Path, dtype: torch.dtype, device: torch.device) -> BridgedModel:
    """Boot TransformerLens on a Hugging Face folder, which needs a tokenizer.

    Raises:
        LoadError: TransformerLens is not installed, or cannot boot the folder.
        UnsupportedModel: an architecture that our configuration cannot describe.
    """
    try:
        from transformer_lens.model_bridge import TransformerBridge
    except ImportError:
        raise LoadError(
            "backend='transformer-lens' needs TransformerLens; run `pip install 'transformer-lens==4.3.0'`"
        ) from None
    texts = tokenizer.from_folder(folder)
    if texts is None:
        raise LoadError(f"{folder} has no tokenizer, and TransformerLens boots no model without one")
    try:
        with quiet():
            bridge = TransformerBridge.boot_transformers(str(folder), device=device, dtype=dtype)
    except Exception as error:  # whatever it or transformers meets, of any type
        reason = " ".join(str(error).split())[:300]
        raise LoadError(f"TransformerLens cannot boot {folder}: {type(error).__name__}: {reason}") from error
    values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    known = values.get("model_type") in FAMILIES
    cfg = configuration(values, str(folder / "config.json")) if known else _described(bridge.cfg)
    return BridgedModel(bridge, cfg, texts)


def _described(theirs: Any) -> DecoderConfig:
    """Describe an architecture that only TransformerLens can run. Raises UnsupportedModel where we have no words."""
    positions = {"standard": "learned", "rotary": "rotary"}.get(theirs.positional_embedding_type)
    norm = {"LN": "layer", "RMS": "rms"}.get(theirs.normalization_type)
    act = {"gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "relu": "relu", "silu": "silu"}
    if positions is None or norm is None or theirs.act_fn not in act:
        raise UnsupportedModel(
            f"{theirs.architecture} has positions {theirs.positional_embedding_type!r}, norm "
            f"{theirs.normalization_type!r}, activation {theirs.act_fn!r}; our configuration cannot describe it"
        )
    return DecoderConfig(
        n_layers=theirs.n_layers,
        d_model=theirs.d_model,
        n_heads=theirs.n_heads,
        n_kv_heads=theirs.n_key_value_heads or theirs.n_heads,
        d_head=theirs.d_head,
        d_mlp=theirs.d_mlp,
        d_vocab=theirs.d_vocab,
        n_ctx=theirs.n_ctx,
        positions=positions,  # type: ignore[arg-type]
        rotary_dim=theirs.rotary_dim if positions == "rotary" else None,
        norm=norm,  # type: ignore[arg-type]
        norm_eps=theirs.eps,
        parallel=theirs.parallel_attn_mlp,
        act=act[theirs.act_fn],  # type: ignore[arg-type]
        gated=theirs.gated_mlp,
        tied=bool(theirs.tie_word_embeddings),
    )


class _Stop(Exception):
    """Carries the residual stream out of a run that ends early."""

    def __init__(self, value: Tensor) -> None:
        self.value = value


class BridgedModel(HookedModule, TextInterface):
    """A ``HookedModel`` whose forward pass is TransformerLens's.

    Args:
        bridge: a ``TransformerBridge``; its weights are frozen, and hook points of ours are set into it for good.
        cfg: describes it, for the tools in ``interp``; it computes nothing here.
        tokenizer: as the checkpoint has it.
    """

    cfg: DecoderConfig

    def __init__(self, bridge: Any, cfg: DecoderConfig, tokenizer: Tokenizer | None) -> None:
        super().__init__()
        self.bridge = bridge.requires_grad_(False)
        self.eval()
        self.cfg = cfg
        self.tokenizer = tokenizer
        self.run_state = RunState()
        self._carried: dict[int, Tensor] = {}
        seen = self._seen()
        table = decoder_hooks(cfg).specs
        self._names = HookNames(
            {name: spec for name, spec in table.items() if seen.get(_theirs(name)) == _shape(spec, cfg)}
        )
        self._points = {name: HookPoint() for name in self._names}
        for name, point in self._points.items():
            point.name, point.run_state = name, self.run_state
            kinds = {"hook_resid_mid": self._middle, "hook_resid_post": self._after_middle}
            self.bridge.hook_dict[_theirs(name)].add_perma_hook(kinds.get(name.rpartition(".")[2], _plain)(point))

    def hook_names(self) -> HookNames:
        return self._names

    @torch.no_grad()
    def _seen(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes that pass the bridge's own hook points in a run of two tokens."""
        with quiet():
            _, cache = self.bridge.run_with_cache(torch.zeros(1, 2, dtype=torch.long, device=self.device))
        return {name: tuple(value.shape) for name, value in cache.items() if isinstance(value, Tensor)}

    def _middle(self, point: HookPoint) -> Callable[..., Tensor | None]:
        """What the MLP reads; the change is kept for the stream, which goes around the MLP."""

        def call(value: Tensor, hook: Any) -> Tensor | None:
            changed = point(value)
            if not point.acts:
                return None
            assert point.layer is not None
            self._carried[point.layer] = changed - value
            return changed

        return call

    def _after_middle(self, point: HookPoint) -> Callable[..., Tensor | None]:
        """The stream leaving the block, with what an edit in the middle added to it."""

        def call(value: Tensor, hook: Any) -> Tensor | None:
            assert point.layer is not None
            carried = self._carried.pop(point.layer, None)
            if carried is not None:
                return point(value + carried)
            return point(value) if point.in_use else None

        return call

    # -- running -------------------------------------------------------------------------------------------------

    def forward(
        self,
        input: ModelInput,
        return_type: ReturnType = "logits",
        *,
        attention_mask: Bool[Tensor, "batch pos"] | None = None,
        prepend_bos: bool | None = None,
        loss_per_token: bool = False,
        stop_at_layer: int | None = None,
    ) -> Any:
        """Run the model; arguments and result are those of ``HookedDecoder.forward``."""
        if return_type not in ("logits", "loss", "both", None):
            raise InputError(f"return_type is {return_type!r}; expected 'logits', 'loss', 'both' or None")
        if isinstance(input, Tensor):
            tokens = check_tokens(input, self.cfg, self.device)
            real = check_mask(attention_mask, tokens)
        else:
            tokens, real = self.to_batch([input] if isinstance(input, str) else input, prepend_bos)
        self._carried.clear()
        self.run_state.positions = absolute_positions(real, tokens.shape[1], tokens.device)
        try:
            if stop_at_layer is not None:
                return self._residual(stop_at_layer, tokens, real)
            logits = self._logits(tokens, real)
        finally:
            self.run_state.positions = None
        if return_type is None:
            return None
        if return_type == "logits":
            return logits
        loss = next_token_loss(logits, tokens, real, loss_per_token)
        return loss if return_type == "loss" else (logits, loss)

    def _logits(self, tokens: Tensor, real: Tensor | None) -> Float[Tensor, "batch pos d_vocab"]:
        with warnings.catch_warnings():
            # it says that the norm is then computed step by step, which is what a hook there asks for
            warnings.filterwarnings("ignore", message="A forward hook edited hook_scale")
            return self.bridge(tokens, attention_mask=None if real is None else real.long())

    def _residual(self, layer: int, tokens: Tensor, real: Tensor | None) -> Float[Tensor, "batch pos d_model"]:
        """Return the stream entering ``layer``, computing nothing beyond it."""
        n_layers = self.cfg.n_layers
        if not -n_layers <= layer <= n_layers:
            raise InputError(f"stop_at_layer is {layer}; this model has {n_layers} layers")
        layer %= n_layers + 1 if layer == n_layers else n_layers
        entry = self.bridge.hook_dict["ln_final.hook_in" if layer == n_layers else f"blocks.{layer}.hook_in"]

        def stop(module: nn.Module, values: tuple[Tensor]) -> None:
            raise _Stop(values[0])

        handle = entry.register_forward_pre_hook(stop)
        try:
            self._logits(tokens, real)
        except _Stop as reached:
            return reached.value
        finally:
            handle.remove()
        raise AssertionError(f"the bridge ran past the entry of layer {layer}")

    # -- weights, [layer, head, ...] with kv heads not repeated ----------------------------------------------------

    @property
    def device(self) -> torch.device:
        return self.bridge.W_E.device

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]:
        return self.bridge.W_E

    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]:
        if self.cfg.positions != "learned":
            raise ConfigError(f"positions={self.cfg.positions!r} has no W_pos")
        return self.bridge.W_pos

    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]:
        return self.bridge.W_U

    @property
    def W_Q(self) -> Float[Tensor, "layer head d_model d_head"]:
        return self.bridge.W_Q

    @property
    def W_K(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        return self.bridge.W_K

    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d_model d_head"]:
        return self.bridge.W_V

    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]:
        return self.bridge.W_O

    @property
    def W_in(self) -> Float[Tensor, "layer d_model d_mlp"]:
        return self.bridge.W_in

    @property
    def W_out(self) -> Float[Tensor, "layer d_mlp d_model"]:
        return self.bridge.W_out


def _plain(point: HookPoint) -> Callable[..., Tensor | None]:
    def call(value: Tensor, hook: Any) -> Tensor | None:
        return point(value) if point.in_use else None

    return call


def _theirs(name: str) -> str:
    """Return the bridge's name of the place that ``name`` means."""
    if not name.startswith("blocks."):
        return name
    _, layer, within = name.split(".", 2)
    return f"blocks.{layer}.{_OTHER_NAME.get(within, within)}"


def _shape(spec: HookSpec, cfg: DecoderConfig) -> tuple[int | None, ...]:
    """Return the shape of an activation in a run of two tokens."""
    two = {"batch": 1, "pos": 2, "query_pos": 2, "key_pos": 2, "head": cfg.n_heads, "kv_head": cfg.n_kv_heads, "one": 1}
    widths = {"d_model": cfg.d_model, "d_head": cfg.d_head, "d_mlp": cfg.d_mlp}
    return tuple((two | widths)[axis] for axis in spec.axes)
