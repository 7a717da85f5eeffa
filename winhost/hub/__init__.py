"""Hubs of models: what they list, what a model is by its own files, and the workload that this makes."""
