"""The tuned lens (Belrose et al. 2303.08112): an affine translator per depth, before the final norm.

    tuned_l(x) = unembed(norm_final(x + x A_l + b_l)),      A_l = 0 and b_l = 0 at the start: the logit lens

Trained, for each depth on its own, on KL(final || tuned_l) over a stream of tokens; the model stays as it is. The last
depth needs none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.files import written_whole
from interp.precision import at_least_float32
from models.errors import CheckpointMismatch, InputError, LoadError
from models.protocol import ResumableModel

Progress = Callable[[int, int, float], None]


@dataclass(frozen=True, eq=False)
class TunedLens:
    """Translators of the embedding and of every block's output but the last.

    Attributes:
        weight: ``[depth, d_model, d_model]``; depth 0 is the embedding, depth l + 1 the stream after block l.
        bias: ``[depth, d_model]``.
        kl: mean training KL of the last tenth of the steps, ``[depth]``, nats per token.
    """

    weight: Float[Tensor, "depth d_model d_model"]
    bias: Float[Tensor, "depth d_model"]
    kl: Float[Tensor, "depth"]

    @staticmethod
    def identity(model: ResumableModel) -> TunedLens:
        """Return translators that change nothing: the logit lens."""
        depths, d_model = len(model.blocks), model.cfg.d_model
        zeros = torch.zeros(depths, d_model, d_model, device=model.device)
        return TunedLens(zeros, zeros[:, 0].clone(), torch.full((depths,), torch.nan))

    def translate(self, depth: int, stream: Float[Tensor, "*any d_model"]) -> Float[Tensor, "*any d_model"]:
        """Return the stream of a depth in the final basis; the last depth's is returned as it is."""
        if stream.shape[-1] != self.weight.shape[-1]:
            raise InputError(f"this lens translates d_model {self.weight.shape[-1]}; the stream has {stream.shape[-1]}")
        if depth == len(self.weight):
            return stream
        if not 0 <= depth < len(self.weight):
            raise InputError(f"depth {depth} is out of range: this lens has depths 0 to {len(self.weight)}")
        weight, bias = self.weight[depth].to(stream), self.bias[depth].to(stream)
        return stream + stream @ weight + bias

    def save(self, path: str | Path) -> Path:
        """Write safetensors, whole or not at all."""
        from safetensors.torch import save

        tensors = {name: getattr(self, name).contiguous() for name in ("weight", "bias", "kl")}
        with written_whole(path) as partial:
            partial.write_bytes(save(tensors, metadata={"format": "residscope tuned lens", "version": json.dumps(1)}))
        return Path(path)

    @staticmethod
    def load(path: str | Path, device: torch.device | str = "cpu") -> TunedLens:
        """Read what ``save`` wrote. Raises LoadError on anything else."""
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            tensors = load_file(path, device=str(device))
        except (OSError, SafetensorError) as error:
            raise LoadError(f"{path} is not a readable safetensors file: {error}") from None
        if set(tensors) != {"weight", "bias", "kl"}:
            raise CheckpointMismatch(f"{path} holds {sorted(tensors)}; a tuned lens holds weight, bias and kl")
        return TunedLens(tensors["weight"], tensors["bias"], tensors["kl"])


def train_tuned_lens(
    model: ResumableModel,
    batches: Iterable[Int[Tensor, "batch pos"]],
    *,
    n_steps: int,
    lr: float = 1e-3,
    progress: Progress | None = None,
) -> TunedLens:
    """Train a lens on batches of tokens, such as ``own_text(model)``.

    Memory: one ``[tokens, d_vocab]`` matrix of logits and its gradient at a time.

    Args:
        n_steps: batches to use; the learning rate falls linearly to 0.
        lr: Adam's.
        progress: called with (step, steps, mean KL over depths).

    Raises:
        InputError: fewer than one step, or batches that end before ``n_steps``.
    """
    if n_steps < 1:
        raise InputError(f"n_steps is {n_steps}; expected at least 1")
    depths, d_model = len(model.blocks), model.cfg.d_model
    translators = [
        (
            torch.zeros(d_model, d_model, device=model.device, requires_grad=True),
            torch.zeros(d_model, device=model.device, requires_grad=True),
        )
        for _ in range(depths)
    ]
    optimiser = torch.optim.Adam([part for translator in translators for part in translator], lr=lr)
    tail: list[Tensor] = []
    source = iter(batches)
    for step in range(n_steps):
        for group in optimiser.param_groups:
            group["lr"] = lr * (1 - step / n_steps)
        tokens = next(source, None)
        if tokens is None:
            raise InputError(f"the batches ended after {step} steps; {n_steps} are needed")
        kl = _set_gradients(model, translators, tokens)
        optimiser.step()
        if step >= 0.9 * n_steps or step == n_steps - 1:
            tail.append(kl)
        if progress is not None:
            progress(step + 1, n_steps, float(kl.mean()))
    weight, bias = (torch.stack(parts).detach() for parts in zip(*translators, strict=True))
    return TunedLens(weight, bias, torch.stack(tail).mean(0))


def _set_gradients(
    model: ResumableModel, translators: Sequence[tuple[Tensor, Tensor]], tokens: Tensor
) -> Float[Tensor, "depth"]:
    """Set every depth's gradients, leaving those of the model alone; return the KLs, in nats per token."""
    names = [f"blocks.{layer}.hook_resid_pre" for layer in range(len(translators))]
    with torch.no_grad():
        logits, cache = model.run_with_cache(tokens, names_filter=names)
        final = at_least_float32(logits).flatten(0, 1).log_softmax(-1)
    found = []
    for name, (weight, bias) in zip(names, translators, strict=True):
        stream = cache[name].flatten(0, 1)
        translated = stream + stream @ weight.to(stream) + bias.to(stream)
        tuned = at_least_float32(model.unembed(model.ln_final(translated))).log_softmax(-1)
        kl = (final.exp() * (final - tuned)).sum(-1).mean()
        weight.grad, bias.grad = torch.autograd.grad(kl, (weight, bias))
        found.append(kl.detach())
    return torch.stack(found)


def own_text(
    model: ResumableModel, *, batch: int = 8, length: int = 64, seed: int = 0
) -> Iterator[Int[Tensor, "batch pos"]]:
    """Yield batches of text that the model itself samples, each from BOS (or a random token) on, without end."""
    generator = torch.Generator().manual_seed(seed)
    length = min(length, model.cfg.n_ctx)
    bos = None if model.tokenizer is None else model.tokenizer.bos_token_id
    while True:
        first = torch.randint(0, model.cfg.d_vocab, (batch, 1), generator=generator)
        if bos is not None:
            first = torch.cat([torch.full((batch, 1), bos), first], 1)
        seed = int(torch.randint(0, 2**31, (1,), generator=generator))
        yield model.generate(first.to(model.device), length - first.shape[1], seed=seed)
