"""Evidence in, findings out: one rule is one function, with its threshold and the reason for it beside it."""
