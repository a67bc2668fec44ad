"""Runnable scripts: parse flags, call interp, save."""
