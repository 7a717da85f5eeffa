"""What WSL reads on a machine: .wslconfig of an account, and /etc/wsl.conf of a distro."""

from winhost.paths.wslconfig.change import WslConfigRefused, changed
from winhost.paths.wslconfig.findings import LintFinding, LintSeverity
from winhost.paths.wslconfig.format import WSLCONF, WSLCONFIG, ConfigFile, Dialect, parse
from winhost.paths.wslconfig.lint import lint
from winhost.paths.wslconfig.reading import effective

__all__ = [
    "WSLCONF",
    "WSLCONFIG",
    "ConfigFile",
    "Dialect",
    "LintFinding",
    "LintSeverity",
    "WslConfigRefused",
    "changed",
    "effective",
    "lint",
    "parse",
]
