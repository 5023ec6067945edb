"""Comparing runs: curves with a center and a band, drawn in characters or as a figure."""
