"""Add, list, remove and test the hosts of fleet.yaml."""
