"""Measure a problem layer by layer and as a whole: one problem flows in, one `Diagnosis` flows out."""
