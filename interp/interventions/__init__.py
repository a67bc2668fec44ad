"""Changing activations and measuring what follows."""
