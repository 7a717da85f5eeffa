"""Print what serves a workload as files for another deployment."""
