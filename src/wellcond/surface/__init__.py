"""The loss around the weights: walks, slices, directions."""
