"""What people paste when something fails, and what is known of it: the table in known/, the search for it in a text,
and what the facts of a host say of each cause.
"""
