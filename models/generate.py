"""Generation: predict, sample, append, repeat; with a KV cache each step is one query against cached keys and values.

    p_w proportional to exp(z_w / T),  pruned to the k most likely (top-k) or to the smallest set of
    probability at least p (nucleus, arXiv 1904.09751)

Hooks that are attached fire at every step, for the new columns; ``hook.positions`` says which those are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from models.errors import InputError
from models.parts.kv_cache import KVCache

if TYPE_CHECKING:
    from models.decoder import HookedDecoder
    from models.text import ModelInput


def prune_logits(
    logits: Float[Tensor, "batch d_vocab"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "batch d_vocab"]:
    """Return logits / temperature with pruned tokens at -inf.

    Args:
        temperature: above 0; below 1 sharpens, above 1 flattens.
        top_k: keep the k highest (more where several tie with the k-th).
        top_p: keep the smallest set of tokens whose probabilities reach p; always at least one.

    >>> prune_logits(torch.tensor([[3.0, 2.0, 1.0]]), top_k=2).tolist()
    [[3.0, 2.0, -inf]]
    """
    logits = logits / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.shape[-1])).values[:, -1:]
        logits = logits.masked_fill(logits < kth, -torch.inf)
    if top_p is not None:
        ordered, order = logits.sort(descending=True)
        before = ordered.softmax(-1).cumsum(-1) - ordered.softmax(-1)
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order, before >= top_p)
        logits = logits.masked_fill(dropped, -torch.inf)
    return logits


def sample(
    logits: Float[Tensor, "batch d_vocab"],
    generator: torch.Generator,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Int[Tensor, "batch 1"]:
    """Draw one token per row; temperature 0 takes the most likely."""
    if temperature == 0:
        return logits.argmax(-1, keepdim=True)
    probabilities = prune_logits(logits.float(), temperature, top_k, top_p).softmax(-1)
    return torch.multinomial(probabilities, 1, generator=generator)


def check_sampling(temperature: float, top_k: int | None, top_p: float | None, max_new_tokens: int) -> None:
    """Raise InputError where a sampling option is out of range."""
    if not temperature >= 0:  # NaN too
        raise InputError(f"temperature is {temperature}; expected 0 (greedy) or above")
    if top_k is not None and top_k < 1:
        raise InputError(f"top_k is {top_k}; expected at least 1, or None")
    if top_p is not None and not 0 < top_p <= 1:
        raise InputError(f"top_p is {top_p}; expected a probability in (0, 1], or None")
    if max_new_tokens < 0:
        raise InputError(f"max_new_tokens is {max_new_tokens}; expected 0 or more")


@torch.no_grad()
def generate(
    model: HookedDecoder,
    input: ModelInput,
    max_new_tokens: int = 20,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    stop_token: int | None = None,
    attention_mask: Bool[Tensor, "batch pos"] | None = None,
    prepend_bos: bool | None = None,
    use_cache: bool = True,
    seed: int = 0,
) -> Int[Tensor, "batch pos"]:
    """Sample a continuation.

    Args:
        model: a decoder; hooks attached to it stay live.
        input: ids ``[batch, pos]``, or text. Ids of different length go in padded on the left, with their mask.
        max_new_tokens: how many tokens to add.
        temperature: 0 is greedy.
        top_k, top_p: see ``prune_logits``.
        stop_token: a row ends after this token and repeats it from there on; the loop ends when all rows have.
        use_cache: keep keys and values; False runs the whole sequence anew at each step (same tokens, slower).
        seed: of the sampling; the global random state is left alone.

    Returns:
        Ids of prompt and continuation, ``[batch, pos + new]``; texts of different length are padded on the left, as
        ``to_batch(texts, padding="left")`` pads them.

    Raises:
        InputError: right-padded prompts, options out of range, more than ``n_ctx`` tokens.
    """
    check_sampling(temperature, top_k, top_p, max_new_tokens)
    if stop_token is not None and not 0 <= stop_token < model.cfg.d_vocab:
        raise InputError(f"stop_token is {stop_token}; this vocabulary is 0 to {model.cfg.d_vocab - 1}")
    tokens, real = model.prepare(input, attention_mask, prepend_bos, padding="left")
    if real is not None and not real[:, -1].all():
        raise InputError("a prompt ends in padding; to continue prompts of different length, pad them on the left")
    longest = tokens.shape[1] if real is None else int(real.sum(1).max())
    if longest + max_new_tokens > model.cfg.n_ctx:
        raise InputError(f"a prompt of {longest} tokens and {max_new_tokens} new ones exceed n_ctx {model.cfg.n_ctx}")
    generator = torch.Generator(device=tokens.device).manual_seed(seed)
    cache = KVCache(model.cfg.n_layers) if use_cache else None
    ended = torch.zeros(tokens.shape[0], dtype=torch.bool, device=tokens.device)
    new, new_real = tokens, real
    for _ in range(max_new_tokens):
        if cache is not None:
            logits = model(new, attention_mask=new_real, kv_cache=cache)[:, -1]
        else:
            logits = model(tokens, attention_mask=real)[:, -1]
        choice = sample(logits, generator, temperature, top_k, top_p)
        if stop_token is not None:
            choice = choice.masked_fill(ended[:, None], stop_token)
            ended |= choice[:, 0] == stop_token
        tokens = torch.cat([tokens, choice], dim=1)
        new, new_real = choice, None
        if real is not None:
            real = torch.cat([real, torch.ones_like(choice, dtype=torch.bool)], dim=1)
        if stop_token is not None and ended.all():
            break
    return tokens
