"""What can be known of a spectrum, and to which error: operators in, eigenvalues, traces and densities out."""
