"""Learning rates: `suggest_lr` and three other ways to find one, against a sweep of thirty rates."""
