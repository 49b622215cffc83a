"""Mean-field theory of batch normalization: one file per figure or table."""
