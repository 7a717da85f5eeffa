"""The errors of a simulated Linux: those of its programs, and of the agent there."""

from winhost.lab.physics.windows_errors import CmdletError


def program_failed(program: str, message: str, code: int = 1) -> CmdletError:
    """A program of Linux that says no."""
    return CmdletError(program, "InvalidResult", "Winhost.ProgramFailed", (f"exit {code}",), message)


def refused(code: str, category: str, message: str, program: str = "") -> CmdletError:
    """An error of the agent there."""
    return CmdletError(program, category, f"Winhost.{code}", (), message)
