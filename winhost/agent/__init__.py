"""The text that answers on a host, before any resource's script: constant, and the same for every host."""
