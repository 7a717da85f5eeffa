"""Defaults of a workload in a cluster. Help quotes them, and loads neither the cluster's room nor that of images."""

NAMESPACE = "winhost"
KEYS = "gateway-keys"
"""The Secret with the gateway's keys."""
K3S = "v1.36.3+k3s1"
"""The newest release of k3s that winhost knows."""
