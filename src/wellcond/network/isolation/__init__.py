"""Nothing of the user's changes: state, random generators and precision settings are restored after a measurement."""
