"""Which learning rate to start with: short runs of copies at several rates, and what they predict for a longer run."""
