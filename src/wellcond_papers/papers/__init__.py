"""The experiments of the five sources: settings, measurements, claims and pictures; one folder per source."""
