"""Trainings that go wrong while they run, and trainings that do not: what the rules of a run say of each."""
