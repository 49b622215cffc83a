"""How batch normalization helps optimization: one file per figure or table."""
