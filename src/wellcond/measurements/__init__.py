"""What is measured of a network besides its curvature: layers, the loss landscape, and single blocks."""
