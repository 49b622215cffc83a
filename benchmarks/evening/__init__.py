"""An evening on a GPU: the unfinished runs of the reproduction book, packed onto one GPU for some minutes."""
