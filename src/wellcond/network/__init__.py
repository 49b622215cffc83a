"""Reading a network: taps, layers, norms, the order and the graph of a forward pass, and calling a model."""
