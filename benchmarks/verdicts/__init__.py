"""Thirty real faults and their repairs, healthy networks, and what `diagnose` and its peers say of each."""
