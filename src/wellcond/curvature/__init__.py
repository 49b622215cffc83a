"""Curvature matrices as linear operators: problems and blocks in, products, Kronecker factors and Gram sides out."""
