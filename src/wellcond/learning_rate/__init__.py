"""How large the learning rate may be: measured limits, mean-field predictions, and races of copies."""
