"""Reads, checks and changes WSL's files: .wslconfig of an account, and /etc/wsl.conf of a distro."""

from winhost.wslconfig.change import changed
from winhost.wslconfig.format import WSLCONF, WSLCONFIG, ConfigFile, Dialect, parse
from winhost.wslconfig.keys import effective
from winhost.wslconfig.rules import lint

__all__ = [
    "WSLCONF",
    "WSLCONFIG",
    "ConfigFile",
    "Dialect",
    "changed",
    "effective",
    "lint",
    "parse",
]
