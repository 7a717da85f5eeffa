"""The resources of a Linux machine: one folder each, and the agent that runs their scripts."""
