"""The arguments, options and help of each command: all that `--help` and the tab key load of it.

What a command does is in a module of `winhost.cli`, imported when it is called.
"""
