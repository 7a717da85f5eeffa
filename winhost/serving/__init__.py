"""Serve models once a path has brought them a Linux: profiles of vLLM, chosen and filled in."""
