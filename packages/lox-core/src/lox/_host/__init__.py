"""Calls from a running program to the host."""
