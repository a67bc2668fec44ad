"""A model run by TransformerLens, behind our interface.

``TransformerBridge`` runs the Hugging Face module itself and has hook points inside it. Ours are set into those, so
that hooks, caches, gradients and errors behave as on a ``HookedDecoder``. ``hook_names()`` lists what acts and means
what the names say, found out at load by ``models.loading.probe``; ``unlisted`` says of every other hook why it is not
there. The per-head inputs and results are on no bridge. Masked scores are the dtype's lowest number, not -inf.
"""

from __future__ import annotations

import json
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from models.config import DecoderConfig
from models.decoder import ModelInput, ReturnType
from models.errors import ConfigError, InputError, LoadError, ResidscopeError, UnknownHook, UnsupportedModel
from models.hooks.module import HookedModule, NameFilter
from models.hooks.names import HookNames, HookSpec, decoder_hooks
from models.hooks.point import HookPoint, RunState
from models.loading import probe, tokenizer
from models.loading.described import described
from models.loading.hugging_face import FAMILIES, configuration
from models.loading.quiet import quiet
from models.parts.loss import next_token_loss
from models.parts.positions import absolute_positions
from models.text import TextInterface, Tokenizer

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
            "backend='transformer-lens' needs TransformerLens; run `pip install 'residscope[transformer-lens]'`, or in "
            "a checkout `pip install -e '.[transformer-lens]'`"
        ) from None
    texts = tokenizer.from_folder(folder)
    if texts is None:
        raise LoadError(f"{folder} has no tokenizer, and TransformerLens boots no model without one")
    try:
        with quiet():
            theirs = _hugging_face_model(folder, dtype, device)
            expected = _logits(theirs, folder)
            bridge = TransformerBridge.boot_transformers(str(folder), hf_model=theirs, device=device, dtype=dtype)
            values = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            known = values.get("model_type") in FAMILIES
            cfg = configuration(values, str(folder / "config.json")) if known else described(bridge, values)
            return BridgedModel(bridge, cfg, texts, expected)
    except ResidscopeError:
        raise
    except Exception as error:  # whatever it or transformers meets, of any type
        reason = " ".join(str(error).split())[:300]
        raise LoadError(f"TransformerLens cannot boot {folder}: {type(error).__name__}: {reason}") from error


def _hugging_face_model(folder: Path, dtype: torch.dtype, device: torch.device) -> Any:
    """Return the model as transformers runs it. Raises UnsupportedModel for an encoder-decoder."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder)
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{folder} is an encoder-decoder ({config.model_type}); only decoders are bridged")
    model = AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=dtype, attn_implementation="eager")
    return model.to(device).eval()


@torch.no_grad()
def _logits(theirs: Any, folder: Path) -> Float[Tensor, "prompt=3 pos d_vocab"]:
    """Return the logits of the probe's prompts before TransformerLens touches the model."""
    config = theirs.config.get_text_config()
    n_ctx = getattr(config, "max_position_embeddings", None) or probe.LENGTH
    tokens = probe.prompts(config.vocab_size, n_ctx, theirs.device)
    logits = theirs(tokens, use_cache=False).logits
    probe.check_causal(logits, f"{folder} ({config.model_type})")
    return logits


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
        expected: the logits of ``probe.prompts`` as the model gives them that the bridge wraps.

    Attributes:
        unlisted: the hooks that are not in ``hook_names()``, with the reason.
    """

    cfg: DecoderConfig

    def __init__(
        self,
        bridge: Any,
        cfg: DecoderConfig,
        tokenizer: Tokenizer | None,
        expected: Float[Tensor, "prompt=3 pos d_vocab"],
    ) -> None:
        super().__init__()
        self.bridge = bridge.requires_grad_(False)
        self.eval()
        self._modules_within = list(self.bridge.modules())
        self.cfg = cfg
        self.tokenizer = tokenizer
        self.run_state = RunState()
        self._carried: dict[int, Tensor] = {}
        self._running = threading.RLock()
        table, seen, theirs = decoder_hooks(cfg).specs, self._seen(), self.bridge.hook_dict
        self._points = {
            name: HookPoint() for name, spec in table.items() if seen.get(_theirs(name)) == self._shape(spec)
        }
        self._names = HookNames({name: table[name] for name in self._points})
        kinds = {"hook_resid_mid": self._middle, "hook_resid_post": self._after_middle}
        handles = {}
        for name, point in self._points.items():
            point.name, point.run_state = name, self.run_state
            hook = kinds.get(name.rpartition(".")[2], _plain)(point)
            handles[name] = theirs[_theirs(name)].add_hook(hook, is_permanent=True)
        absent = {name: "TransformerLens has no such hook here" for name in table if name not in self._points}
        for name in absent.keys() & {name for name in table if _theirs(name) in seen}:
            absent[name] = f"its shape is {seen[_theirs(name)]}, expected {self._shape(table[name])}"
        self.unlisted = absent
        self.unlisted = absent | probe.probe(self, expected, self.bridge.blocks)
        self._points = {name: point for name, point in self._points.items() if name not in self.unlisted}
        self._names = HookNames({name: table[name] for name in self._points})
        for name in handles.keys() - self._points.keys():
            theirs[_theirs(name)].fwd_hooks.remove(handles[name])
            handles[name].hook.remove()

    def hook_names(self) -> HookNames:
        return self._names

    def _matching(self, wanted: NameFilter) -> list[str]:
        if isinstance(wanted, str) and wanted in self.unlisted:
            raise UnknownHook(f"{wanted} is not listed on this bridge: {self.unlisted[wanted]}")
        return super()._matching(wanted)

    @torch.no_grad()
    def _seen(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes that pass the bridge's own hook points when the probe's prompts are run."""
        tokens = probe.prompts(self.cfg.d_vocab, self.cfg.n_ctx, self.device)
        _, cache = self.bridge.run_with_cache(tokens)
        return {name: tuple(value.shape) for name, value in cache.items() if isinstance(value, Tensor)}

    def _shape(self, spec: HookSpec) -> tuple[int | None, ...]:
        """Return the shape of an activation when the probe's prompts are run."""
        cfg, (batch, pos) = self.cfg, probe.prompts(self.cfg.d_vocab, self.cfg.n_ctx, self.device).shape
        sizes = {"batch": batch, "pos": pos, "query_pos": pos, "key_pos": pos, "one": 1}
        sizes |= {"head": cfg.n_heads, "kv_head": cfg.n_kv_heads}
        widths = {"d_model": cfg.d_model, "d_head": cfg.d_head, "d_mlp": cfg.d_mlp}
        return tuple((sizes | widths)[axis] for axis in spec.axes)

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
        tokens, real = self.prepare(input, attention_mask, prepend_bos)
        self._check_evaluating()
        with self._alone(), self._at(absolute_positions(real, tokens.shape[1], tokens.device)):
            if stop_at_layer is not None:
                return self._residual(stop_at_layer, tokens, real)
            logits = self._logits(tokens, real)
        if return_type is None:
            return None
        if return_type == "logits":
            return logits
        loss = next_token_loss(logits, tokens, real, loss_per_token)
        return loss if return_type == "loss" else (logits, loss)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let one thread run at a time: TransformerLens keeps what a run needs in its modules, as we do."""
        with self._running:
            before, self._carried = self._carried, {}
            try:
                yield
            finally:
                self._carried = before

    def __deepcopy__(self, memo: Any) -> BridgedModel:
        raise InputError("a bridge has its hooks inside TransformerLens's model and cannot be copied; load it again")

    def _check_evaluating(self) -> None:
        """Refuse to run with dropout, whose noise every tool would count as an effect."""
        if any(module.training for module in self._modules_within):
            raise InputError(
                "this model is in training mode: its dropout would count as an effect; call model.eval() first"
            )

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
