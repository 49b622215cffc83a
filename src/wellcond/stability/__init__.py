"""How large the learning rate may be."""
