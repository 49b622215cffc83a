"""Curvature matrices as linear operators, and their Kronecker and Gram sides."""
