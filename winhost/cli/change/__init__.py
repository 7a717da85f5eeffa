"""Change hosts: apply, resume, roll back, verify, list runs, and start the other system."""
