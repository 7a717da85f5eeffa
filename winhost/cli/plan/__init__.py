"""Plan a host, with the stack that serves a workload."""
