"""Benchmarks against the peers, in one process, interleaved. `python -m benchmarks --help`."""
