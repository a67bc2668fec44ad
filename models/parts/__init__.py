"""The parts that the transformers in ``models`` are built from."""
