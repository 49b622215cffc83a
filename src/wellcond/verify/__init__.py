"""What training itself says: a problem and an optimizer in; a learning rate, and what each remedy gains, out."""
