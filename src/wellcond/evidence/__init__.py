"""What can be seen of a problem without its curvature: data, outputs, signals, weights, and what a few steps do."""
