"""What training itself says: a rate, and what the remedies buy."""
