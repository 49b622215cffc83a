"""One plain training loop."""
