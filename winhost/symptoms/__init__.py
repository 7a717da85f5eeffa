"""Explains error messages: tables of symptoms, the search in a text, and the judgement of causes by a host's facts."""
