"""Measurements with one entry a layer."""
