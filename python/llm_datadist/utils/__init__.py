"""Argument checks and the log."""
