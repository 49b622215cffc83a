"""Spectra of linear operators: eigenvalues with error bounds, exact spectra, densities and traces."""
