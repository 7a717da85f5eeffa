"""A plan as an offline package of scripts: its files, and what runs of them on Windows and in a Linux."""
