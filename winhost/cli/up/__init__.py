"""Serve a model with one command, and undo that."""
