"""Every hook's activation equals what Hugging Face's own submodules read and write, for one GPT-2 and one Llama.

What no submodule passes through (scores, norm scales, per-head results) is computed by hand from what they do pass.
"""

import pytest
import torch
from torch import Tensor

from models.loading import load_model
from tests.models.loading.families import LLAMA3_ROPE, build, save, tokens


class Seen:
    """What each submodule of a Hugging Face model read and wrote in one run."""

    def __init__(self, model, ids: Tensor) -> None:
        self.read: dict[str, Tensor] = {}
        self.wrote: dict[str, Tensor] = {}
        handles = [
            module.register_forward_hook(self._keep(name), with_kwargs=True) for name, module in model.named_modules()
        ]
        self.output = model(ids, output_attentions=True)
        for handle in handles:
            handle.remove()

    def _keep(self, name: str):
        def hook(module, args, kwargs, output):
            read = args[0] if args else kwargs.get("hidden_states")
            if read is not None:
                self.read[name] = read
            self.wrote[name] = output[0] if name.endswith((".attn", ".self_attn")) else output

        return hook


def norm(name: str, seen: Seen, module, theirs: str, eps: float, *, centred: bool) -> dict[str, Tensor]:
    """The scale by its equation; the quotient from the module's output, gain and bias undone."""
    x = seen.read[theirs]
    variance = x.var(-1, keepdim=True, correction=0) if centred else x.pow(2).mean(-1, keepdim=True)
    bias = module.bias if centred else 0
    return {
        f"{name}.hook_scale": (variance + eps).sqrt(),
        f"{name}.hook_normalized": (seen.wrote[theirs] - bias) / module.weight,
    }


def masked_scores(q: Tensor, k: Tensor) -> Tensor:
    """q.k / sqrt(d_head) for every query head, keys repeated over their group, the future at -inf."""
    k = k.repeat_interleave(q.shape[2] // k.shape[2], dim=2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
    return scores.masked_fill(torch.ones(scores.shape[-2:]).triu(1).bool(), -torch.inf)


def attention(at: str, heads: dict[str, Tensor], z: Tensor, w_o: Tensor, pattern: Tensor) -> dict[str, Tensor]:
    q, k = heads.get("rot_q", heads["q"]), heads.get("rot_k", heads["k"])
    return {
        **{f"{at}.attn.hook_{name}": value for name, value in heads.items()},
        f"{at}.attn.hook_attn_scores": masked_scores(q, k),
        f"{at}.attn.hook_pattern": pattern,
        f"{at}.attn.hook_z": z,
        f"{at}.attn.hook_result": torch.einsum("bphd,hdm->bphm", z, w_o),
    }


def stream(at: str, pre: Tensor, attn_out: Tensor, mid: Tensor, mlp_out: Tensor, post: Tensor, n_q: int, n_kv: int):
    def per_head(n: int) -> Tensor:
        return pre.unsqueeze(2).expand(-1, -1, n, -1)

    return {
        f"{at}.hook_resid_pre": pre,
        f"{at}.attn.hook_attn_in": pre,
        f"{at}.hook_q_input": per_head(n_q),
        f"{at}.hook_k_input": per_head(n_kv),
        f"{at}.hook_v_input": per_head(n_kv),
        f"{at}.hook_attn_out": attn_out,
        f"{at}.hook_resid_mid": mid,
        f"{at}.hook_mlp_in": mid,
        f"{at}.hook_mlp_out": mlp_out,
        f"{at}.hook_resid_post": post,
    }


def gpt2_activations(model, ids: Tensor) -> dict[str, Tensor]:
    seen, cfg = Seen(model, ids), model.config
    d_head = cfg.n_embd // cfg.n_head
    found = {
        "hook_embed": seen.wrote["transformer.wte"],
        "hook_pos_embed": seen.wrote["transformer.wpe"].expand(len(ids), -1, -1),
    }
    for layer, block in enumerate(model.transformer.h):
        at, theirs = f"blocks.{layer}", f"transformer.h.{layer}"
        q, k, v = (x.unflatten(-1, (-1, d_head)) for x in seen.wrote[f"{theirs}.attn.c_attn"].split(cfg.n_embd, -1))
        z = seen.read[f"{theirs}.attn.c_proj"].unflatten(-1, (-1, d_head))
        w_o = block.attn.c_proj.weight.unflatten(0, (-1, d_head))
        found |= norm(f"{at}.ln1", seen, block.ln_1, f"{theirs}.ln_1", cfg.layer_norm_epsilon, centred=True)
        found |= norm(f"{at}.ln2", seen, block.ln_2, f"{theirs}.ln_2", cfg.layer_norm_epsilon, centred=True)
        found |= attention(at, {"q": q, "k": k, "v": v}, z, w_o, seen.output.attentions[layer])
        found |= stream(
            at,
            seen.read[theirs],
            seen.wrote[f"{theirs}.attn"],
            seen.read[f"{theirs}.ln_2"],
            seen.wrote[f"{theirs}.mlp"],
            seen.wrote[theirs],
            cfg.n_head,
            cfg.n_head,
        )
        found[f"{at}.mlp.hook_pre"] = seen.wrote[f"{theirs}.mlp.c_fc"]
        found[f"{at}.mlp.hook_post"] = seen.read[f"{theirs}.mlp.c_proj"]
    eps = cfg.layer_norm_epsilon
    return found | norm("ln_final", seen, model.transformer.ln_f, "transformer.ln_f", eps, centred=True)


def llama_activations(model, ids: Tensor) -> dict[str, Tensor]:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    seen, cfg = Seen(model, ids), model.config
    cos, sin = seen.wrote["model.rotary_emb"]
    found = {"hook_embed": seen.wrote["model.embed_tokens"]}
    for layer, block in enumerate(model.model.layers):
        at, theirs = f"blocks.{layer}", f"model.layers.{layer}"
        heads = {
            name: seen.wrote[f"{theirs}.self_attn.{name}_proj"].unflatten(-1, (-1, cfg.head_dim)) for name in "qkv"
        }
        heads["rot_q"], heads["rot_k"] = apply_rotary_pos_emb(heads["q"], heads["k"], cos, sin, unsqueeze_dim=2)
        z = seen.read[f"{theirs}.self_attn.o_proj"].unflatten(-1, (-1, cfg.head_dim))
        w_o = block.self_attn.o_proj.weight.T.unflatten(0, (-1, cfg.head_dim))
        eps, second = cfg.rms_norm_eps, f"{theirs}.post_attention_layernorm"
        found |= norm(f"{at}.ln1", seen, block.input_layernorm, f"{theirs}.input_layernorm", eps, centred=False)
        found |= norm(f"{at}.ln2", seen, block.post_attention_layernorm, second, eps, centred=False)
        found |= attention(at, heads, z, w_o, seen.output.attentions[layer])
        found |= stream(
            at,
            seen.read[theirs],
            seen.wrote[f"{theirs}.self_attn"],
            seen.read[second],
            seen.wrote[f"{theirs}.mlp"],
            seen.wrote[theirs],
            cfg.num_attention_heads,
            cfg.num_key_value_heads,
        )
        found[f"{at}.mlp.hook_pre"] = seen.wrote[f"{theirs}.mlp.gate_proj"]
        found[f"{at}.mlp.hook_pre_linear"] = seen.wrote[f"{theirs}.mlp.up_proj"]
        found[f"{at}.mlp.hook_post"] = seen.read[f"{theirs}.mlp.down_proj"]
    return found | norm("ln_final", seen, model.model.norm, "model.norm", cfg.rms_norm_eps, centred=False)


CASES = {
    "gpt2": ("GPT2", {}, gpt2_activations),
    "llama": ("Llama", {"rope_parameters": LLAMA3_ROPE, "attention_bias": True}, llama_activations),
}


@pytest.mark.parametrize("name", CASES)
def test_every_activation_equals_hugging_face(name, tmp_path):
    family, settings, activations = CASES[name]
    theirs = build(family, **settings)
    ours = load_model(save(theirs, tmp_path / "model"))
    ids = tokens(theirs, n=14)
    expected = activations(theirs, ids)
    _, cache = ours.run_with_cache(ids)
    assert set(expected) == set(ours.hook_names()) == set(cache)
    for hook, value in expected.items():
        scale = value[value.isfinite()].abs().max().item()
        torch.testing.assert_close(
            cache[hook], value, rtol=0, atol=2e-5 * scale, msg=lambda m, hook=hook: f"{hook}: {m}"
        )
