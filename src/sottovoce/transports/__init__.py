"""Wires: they move frames as bytes, nothing else."""
