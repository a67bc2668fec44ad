"""What to run a model on: random tokens, and pairs of a clean and a corrupted prompt."""

from interp.prompts.default import default_prompts
from interp.prompts.factual import factual_prompts
from interp.prompts.greater_than import greater_than_prompts
from interp.prompts.ioi import ioi_prompts
from interp.prompts.pairs import PromptBatch, PromptPair, prompt_batch
from interp.prompts.random_tokens import RepeatedTokens, mixed_repeats, ordinary_ids, repeated_tokens
from interp.prompts.repeated import repeated_token_prompts

__all__ = [
    "PromptBatch",
    "PromptPair",
    "RepeatedTokens",
    "default_prompts",
    "factual_prompts",
    "greater_than_prompts",
    "ioi_prompts",
    "mixed_repeats",
    "ordinary_ids",
    "prompt_batch",
    "repeated_token_prompts",
    "repeated_tokens",
]
