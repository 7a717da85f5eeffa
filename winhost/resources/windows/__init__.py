"""The resources of a Windows host: one folder each, and the agent that runs their scripts."""
