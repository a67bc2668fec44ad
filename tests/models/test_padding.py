"""Scenarios 3 and 4, promise 5: padding, batching and caching change no logit; hooks see absolute positions."""

from __future__ import annotations

import pytest
import torch

from models.errors import CacheError, InputError
from models.parts.kv_cache import KVCache
from tests.configurations import CONFIGS, random_model, random_tokens

LENGTHS = (6, 3, 1, 5)


def padded(rows, side):
    """Return tokens and mask of rows of different length; the ids under the mask are not all alike."""
    width = max(len(row) for row in rows)
    tokens = torch.arange(len(rows) * width).view(len(rows), width) % 7
    real = torch.zeros(len(rows), width, dtype=torch.bool)
    for i, row in enumerate(rows):
        where = {"left": slice(width - len(row), width), "right": slice(0, len(row))}.get(side)
        if side == "both":
            start = (width - len(row)) // 2
            where = slice(start, start + len(row))
        tokens[i, where], real[i, where] = row, True
    return tokens, real


@pytest.fixture(params=CONFIGS)
def model(request):
    return random_model(CONFIGS[request.param])


@pytest.fixture
def rows(model):
    return [random_tokens(model.cfg, 1, n, seed=n)[0] for n in LENGTHS]


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_a_padded_batch_gives_the_logits_and_activations_of_single_runs(model, rows, side):
    tokens, real = padded(rows, side)
    logits, cache = model.run_with_cache(tokens, attention_mask=real)
    torch.testing.assert_close(model(tokens, attention_mask=real.long()), logits)
    specs = model.hook_names().specs
    for i, row in enumerate(rows):
        alone, expected = model.run_with_cache(row[None])
        torch.testing.assert_close(logits[i, real[i]], alone[0])
        for hook in specs:
            if "query_pos" in specs[hook].axes:
                got = cache[hook][i][:, real[i]][:, :, real[i]]
            else:
                got = cache[hook][i, real[i]]
            torch.testing.assert_close(got, expected[hook][0])


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_ids_under_the_mask_do_not_matter(model, rows, side):
    tokens, real = padded(rows[:2], side)
    others = torch.where(real, tokens, (tokens + 3) % model.cfg.d_vocab)
    assert not torch.equal(tokens, others)
    logits, loss = model(tokens, "both", attention_mask=real)
    logits_others, loss_others = model(others, "both", attention_mask=real)
    torch.testing.assert_close(logits[real], logits_others[real], rtol=0, atol=0)
    assert torch.equal(loss, loss_others)
    per_token = model(tokens, "loss", attention_mask=real, loss_per_token=True)
    others_per_token = model(others, "loss", attention_mask=real, loss_per_token=True)
    assert torch.equal(per_token.nan_to_num(-1), others_per_token.nan_to_num(-1))


@pytest.mark.parametrize("side", ["left", "right"])
def test_the_loss_is_the_mean_over_real_pairs(model, rows, side):
    tokens, real = padded(rows, side)
    loss = model(tokens, "loss", attention_mask=real)
    singles = [model(row[None], "loss", loss_per_token=True)[0] for row in rows if len(row) > 1]
    torch.testing.assert_close(loss, torch.cat(singles).mean())


def test_a_hole_in_the_mask_is_as_if_the_token_were_not_there(model):
    tokens = random_tokens(model.cfg, 1, 8)
    real = torch.tensor([[True, True, False, False, True, True, False, True]])
    logits = model(tokens, attention_mask=real)
    torch.testing.assert_close(logits[real], model(tokens[real][None])[0])


def positions_seen(model, run):
    """Return what ``hook.positions`` said at the first and the last hook of every pass."""
    seen = []

    def note(value, hook):
        assert hook.positions.shape[-1] == value.shape[1]
        seen.append(hook.positions.tolist())

    first, last = "hook_embed", f"blocks.{model.cfg.n_layers - 1}.hook_resid_post"
    with model.hooks([(first, note), (last, note)]):
        run()
    assert seen[::2] == seen[1::2]
    assert model.hook_dict[first].positions is None
    return seen[::2]


def test_hooks_see_absolute_positions(model, rows):
    tokens, real = padded(rows[:2], "left")
    assert positions_seen(model, lambda: model(rows[0][None])) == [[[0, 1, 2, 3, 4, 5]]]
    left = positions_seen(model, lambda: model(tokens, attention_mask=real))
    assert left == [[[0, 1, 2, 3, 4, 5], [0, 0, 0, 0, 1, 2]]]
    tokens, real = padded(rows[:2], "right")
    (right,) = positions_seen(model, lambda: model(tokens, attention_mask=real))
    assert right[0] == [0, 1, 2, 3, 4, 5]
    assert right[1][:3] == [0, 1, 2]


@pytest.mark.parametrize("use_cache", [True, False])
def test_hooks_see_absolute_positions_while_generating(model, rows, use_cache):
    tokens, real = padded(rows[:2], "left")
    seen = positions_seen(
        model, lambda: model.generate(tokens, 3, attention_mask=real, use_cache=use_cache, temperature=0)
    )
    last_columns = [[row[-1] for row in positions] for positions in seen]
    assert last_columns == [[5, 2], [6, 3], [7, 4]]
    assert [len(positions[0]) for positions in seen] == ([6, 1, 1] if use_cache else [6, 7, 8])


@pytest.mark.parametrize("use_cache", [True, False])
def test_generation_is_the_same_padded_or_alone_cached_or_not(model, rows, use_cache):
    tokens, real = padded(rows, "left")
    together = model.generate(tokens, 6, attention_mask=real, use_cache=use_cache, temperature=0)
    assert together.shape == (4, 12)
    for i, row in enumerate(rows):
        alone = model.generate(row[None], 6, temperature=0, use_cache=False)
        assert torch.equal(together[i, -6:], alone[0, -6:])
        assert torch.equal(together[i, :6], tokens[i])


@pytest.mark.parametrize("chunks", [(1,) * 8, (3, 5), (5, 1, 2), (8,), (2, 2, 2, 2)])
def test_a_run_in_chunks_equals_the_run_at_once(model, chunks):
    tokens = random_tokens(model.cfg, 2, 8)
    cache, pieces = KVCache(model.cfg.n_layers), []
    for chunk in tokens.split(chunks, dim=1):
        pieces.append(model(chunk, kv_cache=cache))
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(tokens))
    assert cache.length == 8


@pytest.mark.parametrize("hooked", [True, False])
def test_chunks_with_padding_of_their_own(model, hooked):
    """Each chunk is padded on either side, as in a batched conversation; hooked scores take the unfused path."""
    tokens = random_tokens(model.cfg, 2, 9)
    real = torch.tensor(
        [
            [False, True, True, True, True, True, True, False, True],
            [True, True, True, False, False, True, True, True, True],
        ]
    )
    cache, pieces = KVCache(model.cfg.n_layers), []
    for columns in (slice(0, 3), slice(3, 7), slice(7, 9)):
        run = model.run_with_cache if hooked else lambda *args, **kwargs: (model(*args, **kwargs), None)
        pieces.append(run(tokens[:, columns], attention_mask=real[:, columns], kv_cache=cache)[0])
    logits = torch.cat(pieces, dim=1)
    for i in range(2):
        torch.testing.assert_close(logits[i, real[i]], model(tokens[i, real[i]][None])[0])


def test_changing_a_token_changes_no_logit_before_it(model):
    tokens = random_tokens(model.cfg, 1, 8)
    logits = model(tokens)
    for at in range(8):
        changed = tokens.clone()
        changed[0, at] = (changed[0, at] + 1) % model.cfg.d_vocab
        others = model(changed)
        torch.testing.assert_close(others[:, :at], logits[:, :at], rtol=0, atol=1e-12)
        assert not torch.allclose(others[:, at], logits[:, at])


def test_a_windowed_token_is_out_of_sight_after_all_layers_windows():
    cfg = CONFIGS["mistral"]  # two layers, each reaching two columns back
    model = random_model(cfg)
    tokens = random_tokens(cfg, 1, 10)
    changed = tokens.clone()
    changed[0, 0] = (changed[0, 0] + 1) % cfg.d_vocab
    same = (model(tokens) - model(changed)).abs().amax(-1)[0] < 1e-12
    assert same.tolist() == [False] * 5 + [True] * 5


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def gpt2():
    return random_model(CONFIGS["gpt2"])


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.ones(2, 5), r"attention_mask has shape \(2, 5\); the tokens have \(2, 6\)"),
        (torch.ones(6), r"attention_mask has shape \(1, 6\)"),
        (torch.full((2, 6), 0.5), "must be bool, or 1 at real tokens and 0 at padding"),
        (torch.full((2, 6), -1), "must be bool"),
        (torch.tensor([[1] * 6, [0] * 6]), "hides every token of some row"),
        ([[1] * 5] * 2, r"attention_mask has shape \(2, 5\)"),
        ("yes", "attention_mask is 'yes'; expected True at real tokens"),
    ],
)
def test_masks_that_do_not_fit(gpt2, mask, message):
    with pytest.raises(InputError, match=message):
        gpt2(random_tokens(gpt2.cfg), attention_mask=mask)


def test_masks_of_one_sequence(gpt2):
    tokens = random_tokens(gpt2.cfg)[0]
    torch.testing.assert_close(
        gpt2(tokens, attention_mask=torch.tensor([0, 1, 1, 1, 1, 1])),
        gpt2(tokens, attention_mask=torch.arange(6)[None] > 0),
    )


def test_a_cache_that_does_not_fit(gpt2):
    tokens = random_tokens(gpt2.cfg)
    with pytest.raises(CacheError, match="the KV cache has 3 layers, this model 2"):
        gpt2(tokens, kv_cache=KVCache(3))
    cache = KVCache(2)
    gpt2(tokens, kv_cache=cache)
    with pytest.raises(CacheError, match="holds a batch of 2, the new tokens a batch of 1"):
        gpt2(tokens[:1], kv_cache=cache)
    with pytest.raises(InputError, match="reaches position 15, but n_ctx is 12"):
        gpt2(random_tokens(gpt2.cfg, 2, 10), kv_cache=cache)


def test_a_cache_of_a_run_that_failed_or_stopped_is_refused(gpt2):
    tokens = random_tokens(gpt2.cfg, n=3)
    stopped = KVCache(2)
    gpt2(tokens, kv_cache=stopped, stop_at_layer=1)
    failed = KVCache(2)

    def bang(value, hook):
        raise RuntimeError

    with pytest.raises(RuntimeError):
        gpt2.run_with_hooks(tokens, kv_cache=failed, fwd_hooks=[("blocks.1.hook_resid_pre", bang)])
    for cache in (stopped, failed):
        with pytest.raises(CacheError, match=r"counts 3 columns and its layers hold \[3, 0\].*start a new one"):
            gpt2(tokens, kv_cache=cache)


@pytest.mark.parametrize(
    ("tokens", "mask"), [(torch.tensor([[1]]), None), (torch.tensor([[1, 2, 3]]), torch.tensor([[1, 0, 1]]))]
)
def test_a_loss_of_nothing_is_refused(gpt2, tokens, mask):
    for return_type in ("loss", "both"):
        with pytest.raises(InputError, match="a loss needs a token and its next one"):
            gpt2(tokens, return_type, attention_mask=mask)
    per_token = gpt2(tokens, "loss", attention_mask=mask, loss_per_token=True)
    assert per_token.shape == (1, tokens.shape[1] - 1)
    assert per_token.isnan().all()
