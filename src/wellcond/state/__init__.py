"""What the user's objects hold: remembered, lent, put back and compared."""
