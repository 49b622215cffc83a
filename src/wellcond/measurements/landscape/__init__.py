"""The loss around the weights: along the gradient, along random directions, and on planes."""
