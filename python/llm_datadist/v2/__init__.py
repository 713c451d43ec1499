"""Module paths that other code imports from."""
