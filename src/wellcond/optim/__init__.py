"""Optimizers that are remedies: a pure update function and a thin class, one a file."""
