"""Simulated hosts, and the demo that uses them."""
