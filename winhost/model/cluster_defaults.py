"""Defaults of a workload in a cluster, separate from `cluster` so that help texts load little."""

NAMESPACE = "winhost"
KEYS = "gateway-keys"
"""The Secret with the gateway's keys."""
K3S = "v1.36.3+k3s1"
"""The newest release of k3s that winhost knows."""
