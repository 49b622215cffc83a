"""One file per command; its help text is the docstring."""
