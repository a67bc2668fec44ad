"""The Hugging Face hub, and its cache on this machine."""

from __future__ import annotations

from pathlib import Path

from models.errors import HubUnreachable, LoadError
from models.loading.quiet import quiet

_SECONDS = 5.0  # to wait for the hub's first answer
_WANTED = [
    "config.json",
    "model*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "chat_template*",
    "special_tokens_map.json",
    "added_tokens.json",
]


def snapshot(repo_id: str) -> Path:
    """Return the folder of a hub model: the cached one if it is whole, else downloaded (with the hub's progress bars).

    Raises:
        HubUnreachable: it is not in the cache and the hub does not answer.
        LoadError: the hub has no such model, or does not give it to this user.
    """
    with quiet():
        from huggingface_hub import HfApi, snapshot_download
        from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

        try:
            cached = Path(snapshot_download(repo_id, allow_patterns=_WANTED, local_files_only=True))
            if (cached / "config.json").is_file() and list(cached.glob("model*.safetensors")):
                return cached
        except LocalEntryNotFoundError:
            pass
        try:
            HfApi().model_info(repo_id, timeout=_SECONDS)
            return Path(snapshot_download(repo_id, allow_patterns=_WANTED, etag_timeout=_SECONDS))
        except GatedRepoError:
            raise LoadError(
                f"{repo_id} is gated: accept its terms on huggingface.co and log in with `hf auth login`"
            ) from None
        except RepositoryNotFoundError:
            raise LoadError(f"the Hugging Face hub has no model {repo_id!r} that this user may read") from None
        except Exception as error:  # requests', httpx's and the hub's own errors share no base class
            raise HubUnreachable(
                f"{repo_id} is not in the local Hugging Face cache and the hub cannot be reached "
                f"({type(error).__name__}); give a local folder, a .gguf file, `toy` or `smollm2` instead"
            ) from None
