"""Use what is served: chat, a port on this computer, and its status."""
