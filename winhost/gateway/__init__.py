"""The gateway before vLLM engines. It is copied to the Linux that serves and runs there, with the standard library of
Python 3.10 or later and nothing else.
"""
