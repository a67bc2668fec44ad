"""The tools that take the models apart."""
