"""Speed, side by side with Hugging Face and TransformerLens in one run."""
