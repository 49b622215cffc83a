"""A model, its loss and its data: evaluated without changing any of them."""
