"""The rules that decide what is done to a host and undone: the standard library alone, because offline packages carry
it.
"""
