"""Small answers of servers that are not ours: hubs of models and registries of images."""
