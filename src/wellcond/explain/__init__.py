"""Findings as people and machines read them: sentences, small plots, the model tree, cards of a page, SARIF."""
