"""What can be known of an operator's spectrum, and to which error."""
