"""A running training, recorded: rows and findings over its steps, in a directory that other tools can read."""
