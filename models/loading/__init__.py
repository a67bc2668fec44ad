"""Getting a model: from a shipped toy, Hugging Face, a GGUF file or a TransformerLens bridge."""

from models.loading.load import load_model
from models.loading.native import load_native, read_record, save_native
from models.loading.save_hugging_face import save_hugging_face

__all__ = ["load_model", "load_native", "read_record", "save_hugging_face", "save_native"]
