"""The papers' experiments, one file each."""
