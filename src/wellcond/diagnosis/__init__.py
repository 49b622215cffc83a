"""From measurements to a diagnosis."""
