"""What rules of a run are made of: the evidence, the course of findings over time, and statistics of noisy series."""
