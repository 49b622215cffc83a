"""What the loss is a mean over, which likelihood it belongs to, and which outputs it reads."""
