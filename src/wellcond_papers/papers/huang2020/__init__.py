"""Layer-wise conditioning analysis: one file per figure or table."""
