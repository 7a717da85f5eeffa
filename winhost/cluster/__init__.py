"""Kubernetes: a workload as manifests, and what makes a Linux a node that runs them."""
