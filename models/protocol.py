"""HookedModel: what the tools in ``interp`` ask of a model, and all they may use.

A ``HookedDecoder`` fits, a ``HookedEncoderDecoder`` fits on its own call arguments, and a TransformerLens bridge
fits through ``models.loading.bridge``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from models.config import StackConfig
from models.hooks.cache import ActivationCache
from models.hooks.module import Hook, NamesFilter
from models.hooks.names import HookNames
from models.hooks.point import HookPoint
from models.parts.block import Block
from models.parts.embedding import Embedding, Unembedding
from models.parts.norm import NoNorm, Norm
from models.parts.step import Step
from models.text import Tokenizer


@runtime_checkable
class HookedModel(Protocol):
    """A transformer with named hook points. ``name`` is what results call it."""

    name: str | None

    @property
    def cfg(self) -> StackConfig: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def device(self) -> torch.device: ...
    @property
    def hook_dict(self) -> dict[str, HookPoint]: ...

    def parameters(self) -> Iterator[Tensor]: ...
    def hook_names(self) -> HookNames: ...
    def __call__(self, *args: Any, **kwargs: Any) -> Any: ...
    def hooks(self, fwd_hooks: Sequence[Hook] = (), bwd_hooks: Sequence[Hook] = ()) -> AbstractContextManager[Any]: ...
    def run_with_hooks(
        self, *args: Any, fwd_hooks: Sequence[Hook] = (), bwd_hooks: Sequence[Hook] = (), **kwargs: Any
    ) -> Any: ...
    def run_with_cache(
        self, *args: Any, names_filter: NamesFilter = None, **kwargs: Any
    ) -> tuple[Any, ActivationCache]: ...
    def check_finite(self, *args: Any, **kwargs: Any) -> None: ...

    def to_tokens(self, text: str | Sequence[str], prepend_bos: bool | None = None) -> Int[Tensor, "batch pos"]: ...
    def to_str_tokens(
        self, text: str | Int[Tensor, "pos"] | Sequence[int], prepend_bos: bool | None = None
    ) -> list[str]: ...

    @property
    def W_E(self) -> Float[Tensor, "d_vocab d_model"]: ...
    @property
    def W_U(self) -> Float[Tensor, "d_model d_vocab"]: ...
    @property
    def W_V(self) -> Float[Tensor, "layer kv_head d_model d_head"]: ...
    @property
    def W_O(self) -> Float[Tensor, "layer head d_head d_model"]: ...


@runtime_checkable
class ResumableModel(HookedModel, Protocol):
    """A model whose blocks can be entered halfway: what makes sweeps fast. A ``HookedDecoder`` is one.

    Attributes:
        embed: from tokens to vectors.
        ln_final, unembed: from the last stream to logits.
    """

    embed: Embedding
    ln_final: Norm | NoNorm
    unembed: Unembedding

    @property
    def blocks(self) -> Sequence[Block]: ...
    def prepare(
        self, input: Any, attention_mask: Any = None, prepend_bos: bool | None = None
    ) -> tuple[Tensor, Tensor | None]: ...
    def to_single_token(self, text: str) -> int: ...
    def step(self, tokens: Tensor, real: Tensor | None) -> Step: ...
    def generate(self, input: Any, max_new_tokens: int, **options: Any) -> Int[Tensor, "batch pos"]: ...
    def replaced_part(self, *under: str) -> str | None: ...
    @property
    def W_pos(self) -> Float[Tensor, "n_ctx d_model"]: ...
    @property
    def b_U(self) -> Float[Tensor, "d_vocab"]: ...
