"""The tuned lens (Belrose et al. 2303.08112): an affine translator per depth, before the final norm.

    tuned_l(x) = unembed(norm_final(x + x A_l + b_l)),      A_l = 0 and b_l = 0 at the start: the logit lens

Trained, for each depth on its own, on KL(final || tuned_l) over a stream of tokens; the model stays as it is. The last
depth needs none.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from interp.checks import whole_number
from interp.decoders import READ_BY_A_LENS, check_parts
from interp.files import written_whole
from interp.finite import check_model
from interp.precision import at_least_float32
from models.errors import CheckpointMismatch, InputError, LoadError, NonFiniteError
from models.protocol import ResumableModel

Progress = Callable[[int, int, float], None]

_FORMAT = "residscope tuned lens"
_TENSORS = ("weight", "bias", "kl", "sample")
_SAMPLED = 64  # entries of each matrix
_ROUNDING = 1e-2  # twice what half precision does to a weight


@dataclass(frozen=True, eq=False)
class TunedLens:
    """Translators of the embedding and of every block's output but the last.

    Attributes:
        weight: ``[depth, d_model, d_model]``; depth 0 is the embedding, depth l + 1 the stream after block l.
        bias: ``[depth, d_model]``.
        kl: mean training KL of the last tenth of the steps, ``[depth]``, nats per token; NaN where none was made.
        sample: some weights of the model that it is for, ``[entry]``; another model is told by having others.
        complete: False where an interrupt ended the training early.
    """

    weight: Float[Tensor, "depth d_model d_model"]
    bias: Float[Tensor, "depth d_model"]
    kl: Float[Tensor, "depth"]
    sample: Float[Tensor, "entry"]
    complete: bool = True

    @staticmethod
    def identity(model: ResumableModel) -> TunedLens:
        """Return translators that change nothing: the logit lens. Raises InputError without a ``HookedDecoder``."""
        check_parts(model, *READ_BY_A_LENS)
        depths, d_model = len(model.blocks), model.cfg.d_model
        zeros = torch.zeros(depths, d_model, d_model, device=model.device)
        return TunedLens(zeros, zeros[:, 0].clone(), torch.full((depths,), torch.nan), _sample(model))

    def check(self, model: ResumableModel) -> None:
        """Raise InputError where the lens is for another model; precision and device may differ."""
        mine, theirs = tuple(self.bias.shape), (len(model.blocks), model.cfg.d_model)
        if mine != theirs:
            raise InputError(
                f"this tuned lens is for a model of {mine[0]} layers and d_model {mine[1]}; this one has {theirs[0]} "
                f"and {theirs[1]}; train one on this model, or load the other"
            )
        sample, own = _sample(model), self.sample.cpu()
        if sample.shape != own.shape or not torch.allclose(sample, own, rtol=_ROUNDING, atol=1e-6):
            raise InputError(
                "this tuned lens is for another model of the same size: the weights it remembers are not this "
                "model's; train one on this model, or load the other"
            )

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

        tensors = {name: getattr(self, name).contiguous() for name in _TENSORS}
        metadata = {"format": _FORMAT, "version": "2", "complete": json.dumps(self.complete)}
        with written_whole(path) as partial:
            partial.write_bytes(save(tensors, metadata=metadata))
        return Path(path)

    @staticmethod
    def load(path: str | Path, device: torch.device | str = "cpu") -> TunedLens:
        """Read what ``save`` wrote. Raises LoadError on anything else."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, "pt", device=str(device)) as file:
                names = list(file.keys())
                tensors = {name: file.get_tensor(name) for name in names}
                metadata = file.metadata() or {}
        except (OSError, SafetensorError) as error:
            raise LoadError(f"{path} is not a readable safetensors file: {error}") from None
        if set(tensors) != set(_TENSORS):
            raise CheckpointMismatch(
                f"{path} holds {sorted(tensors)}; a tuned lens holds {' and '.join(_TENSORS)}: train it anew"
            )
        _check_tensors(path, tensors)
        return TunedLens(**tensors, complete=metadata.get("complete") != "false")


def _check_tensors(path: str | Path, tensors: Mapping[str, Tensor]) -> None:
    """Raise CheckpointMismatch on tensors that do not go together, LoadError on NaN or inf."""
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if len(shapes["bias"]) == 2:
        depths, d_model = shapes["bias"]
        expected = {"weight": (depths, d_model, d_model), "bias": (depths, d_model), "kl": (depths,)}
        fits = {name: shapes[name] for name in expected} == expected and len(shapes["sample"]) == 1
        if fits and all(tensor.is_floating_point() for tensor in tensors.values()):
            for name in ("weight", "bias", "sample"):  # the KL of an untrained lens is NaN
                if not tensors[name].isfinite().all():
                    raise LoadError(f"{path}: {name} holds NaN or inf; train the lens anew, with a lower lr")
            return
    raise CheckpointMismatch(
        f"{path} holds shapes {shapes}; expected floating-point weight [depth, d_model, d_model], bias "
        "[depth, d_model], kl [depth] and sample [entry]"
    )


@torch.no_grad()
def _sample(model: ResumableModel) -> Float[Tensor, "entry"]:
    """Return weights from all over the unembedding and from what each layer's heads write, as float32 on the CPU."""
    matrices = [model.W_U, *(block.attn.o.weight for block in model.blocks)]
    taken = []
    for matrix in matrices:
        rows, columns = (torch.linspace(0, size - 1, _SAMPLED).long() for size in matrix.shape)
        # every column, in an order that does not go with the rows, so that entries lie off the diagonal too
        taken.append(matrix[rows.to(matrix.device), columns.roll(_SAMPLED // 3).to(matrix.device)].float().cpu())
    return torch.cat(taken)


def train_tuned_lens(
    model: ResumableModel,
    batches: Iterable[Int[Tensor, "batch pos"]],
    *,
    n_steps: int,
    lr: float = 1e-3,
    progress: Progress | None = None,
) -> TunedLens:
    """Train a lens on batches of tokens, such as ``own_text(model)``.

    An interrupt (Ctrl-C) ends the training: the lens so far is returned, its ``complete`` False.

    Memory: one ``[tokens, d_vocab]`` matrix of logits and its gradient at a time.

    Args:
        n_steps: batches to use; the learning rate falls linearly to 0.
        lr: Adam's.
        progress: called with (step, steps, mean KL over depths).

    Raises:
        InputError: fewer than one step, a learning rate that is not positive, batches that end before ``n_steps``, a
            model that is no ``HookedDecoder``, or was made under ``torch.inference_mode``.
        NonFiniteError: NaN or inf, in the model or because the training diverged.
    """
    check_parts(model, *READ_BY_A_LENS)
    whole_number(n_steps, "n_steps", None)
    if n_steps < 1:
        raise InputError(f"n_steps is {n_steps}; expected at least 1")
    if not (isinstance(lr, (int, float)) and not isinstance(lr, bool) and 0 < lr < math.inf):
        raise InputError(f"lr is {lr!r}; expected a positive number, such as 1e-3")
    if any(weight.is_inference() for weight in model.parameters()):
        raise InputError(
            "the model was made under torch.inference_mode, and nothing can be differentiated through its weights; "
            "make or load it outside"
        )
    with torch.inference_mode(False), torch.enable_grad():  # whatever mode the caller is in
        return _train(model, iter(batches), n_steps, lr, progress)


def _train(
    model: ResumableModel, batches: Iterator[Tensor], n_steps: int, lr: float, progress: Progress | None
) -> TunedLens:
    depths, d_model = len(model.blocks), model.cfg.d_model
    translators = [
        (
            torch.zeros(d_model, d_model, device=model.device, requires_grad=True),
            torch.zeros(d_model, device=model.device, requires_grad=True),
        )
        for _ in range(depths)
    ]
    optimiser = torch.optim.Adam([part for translator in translators for part in translator], lr=lr)
    tail: deque[Tensor] = deque(maxlen=max(1, n_steps // 10))
    complete = False
    try:
        for step in range(n_steps):
            for group in optimiser.param_groups:
                group["lr"] = lr * (1 - step / n_steps)
            tokens = next(batches, None)
            if tokens is None:
                raise InputError(f"the batches ended after {step} steps; {n_steps} are needed")
            tokens, _ = model.prepare(tokens)
            if step == 0:
                check_model(model, tokens)
            kl = _set_gradients(model, translators, tokens)
            _check_kl(model, tokens, kl, step)
            optimiser.step()
            tail.append(kl)
            if progress is not None:
                progress(step + 1, n_steps, float(kl.mean()))
        complete = True
    except KeyboardInterrupt:
        pass  # what is trained is kept
    weight, bias = (torch.stack(parts).detach() for parts in zip(*translators, strict=True))
    kl = torch.stack(list(tail)).mean(0) if tail else torch.full((depths,), torch.nan)
    return TunedLens(weight, bias, kl, _sample(model), complete)


def _check_kl(model: ResumableModel, tokens: Tensor, kl: Float[Tensor, "depth"], step: int) -> None:
    if not kl.isfinite().all():
        model.check_finite(tokens)
        raise NonFiniteError(f"the KL became NaN or inf in step {step + 1}, though the model is finite; lower lr")


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
    """Yield batches of text that the model itself samples, each from BOS (or a random token) on, without end.

    Args:
        batch: prompts per batch.
        length: tokens per prompt, BOS included; no more than ``n_ctx`` are made.
        seed: of all that is drawn.

    Raises:
        InputError: no prompt, a length that leaves nothing to sample, a model that is no ``HookedDecoder``.
    """
    check_parts(model, *READ_BY_A_LENS)
    bos = None if model.tokenizer is None else model.tokenizer.bos_token_id
    given = ["a random token"] if bos is None else ["BOS", "a random token"]
    for name, number, least in (("batch", batch, 1), ("length", length, len(given) + 1)):
        whole_number(number, name, None)
        if number < least:
            why = "" if name == "batch" else f": {' and '.join(given)} come first, and the rest is sampled"
            raise InputError(f"{name} is {number}; expected at least {least}{why}")
    whole_number(seed, "seed", None)
    return _sampled(model, bos, batch, min(length, model.cfg.n_ctx), seed)


def _sampled(
    model: ResumableModel, bos: int | None, batch: int, length: int, seed: int
) -> Iterator[Int[Tensor, "batch pos"]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        first = torch.randint(0, model.cfg.d_vocab, (batch, 1), generator=generator)
        if bos is not None:
            first = torch.cat([torch.full((batch, 1), bos), first], 1)
        seed = int(torch.randint(0, 2**31, (1,), generator=generator))
        yield model.generate(first.to(model.device), length - first.shape[1], seed=seed)
