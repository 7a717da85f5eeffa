"""Copies of what a plan takes from the internet, in a folder for a site that has none."""
