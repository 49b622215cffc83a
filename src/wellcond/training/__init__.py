"""One plain training loop: an optimizer, a loss and batches in; the loss of every step out, also if it diverges."""
