"""Probes of training: walks over the loss landscape, slices of it, covariate shift, activations (santurkar2018)."""
