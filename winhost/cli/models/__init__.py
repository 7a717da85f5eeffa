"""Choose and draft models, and pack their weights."""
