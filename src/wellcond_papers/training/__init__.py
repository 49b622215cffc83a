"""Training a classifier to the end: schedules, checkpoints, several processes."""
