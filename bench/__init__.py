"""Measure what winhost costs, against the least that the same job can cost. `make bench` prints the table."""
