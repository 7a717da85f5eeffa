"""Serve models on a target, and look after what is served."""
