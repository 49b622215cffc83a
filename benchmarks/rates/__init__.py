"""Learning rates: `suggest_lr` and other ways to find one, against a sweep of 22 rates on 54 tasks."""
