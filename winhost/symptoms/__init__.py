"""Explain error messages: the tables of symptoms, the search in a text, and causes judged by a host's facts."""
