"""Remedies, one file each: what a remedy does to a set-up, and the lines a person writes for it."""
