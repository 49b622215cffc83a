"""Mean-field theory: how far the learning rate can go, told from the architecture alone (wei2019)."""
