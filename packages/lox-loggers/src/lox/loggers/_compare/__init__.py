"""Runs next to each other: curves with their middle and spread, drawn in characters or as a figure."""
