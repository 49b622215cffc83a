"""One plain training loop: an optimizer, a loss and batches in; the loss of every step out, also if it diverges.

`train` is the plain one, `train_classifier` the one for images. How a step is taken, how rates change, how a run is
kept on disk and how processes share it are files of their own.
"""
