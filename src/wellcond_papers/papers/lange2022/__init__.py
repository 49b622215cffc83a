"""Batch normalization preconditioning: one file per figure or table."""
