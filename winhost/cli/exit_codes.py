"""What exit codes mean: the one table that `--help` shows, whole for winhost and of each command that has its own."""

from collections.abc import Mapping

import click

GENERAL: Mapping[int, str] = {
    0: "success",
    1: "failure, or a run that changed something and stopped",
    2: "wrong usage: nothing was done",
    3: "refused by a verdict",
    4: "drift: something is not as planned, or differs",
    5: "a host cannot be reached",
    130: "stopped with Ctrl-C",
    141: "nobody reads the output any more",
}
_EVERYWHERE = (0, 1, 2, 130, 141)
_UNREACHED = {5: GENERAL[5]}
_RUN = {
    3: "refused by a verdict, also by one that a later stage brought",
    4: "a host is not as the plan saw it, or in the end not as it wants it",
    **_UNREACHED,
}

# Command → what a code says of it alone. A test holds each command to those.
OWN: Mapping[str, Mapping[int, str]] = {
    "detect": _UNREACHED,
    "assess": {3: "no way, or not that of --path, works on a host and offers what is needed", **_UNREACHED},
    "report": _UNREACHED,
    "diff": {0: "no difference", 4: "the host is not as it was, or is judged differently"},
    "plan": {0: "planned", 3: "refused by a verdict, or to be named with --path", **_UNREACHED},
    "apply": {0: "applied; with --check: it would be", **_RUN},
    "resume": {0: "applied", **_RUN},
    "rollback": {
        0: "rolled back",
        1: "failure, or something cannot be judged: the run stays open",
        4: "something is neither as the run left it nor as it was found",
        **_UNREACHED,
    },
    "verify": {0: "as planned", 4: "something is not as planned", **_UNREACHED},
    "lint wslconfig": {0: "nothing to find, or notes alone", 1: "WSL ignores something, or fails because of it"},
    "lint wslconf": {0: "nothing to find, or notes alone", 1: "WSL ignores something, or reads no further"},
    "serve profile": {3: "no profile can serve the workload there"},
}


def codes_of(command: str) -> Mapping[int, str]:
    """Those that a command may end with, by its words behind `winhost`; of no command all that there are."""
    if not command:
        return GENERAL
    own = OWN.get(command, {})
    return {code: own.get(code, GENERAL[code]) for code in GENERAL if code in own or code in _EVERYWHERE}


def show_codes(command: str, formatter: click.HelpFormatter) -> None:
    """The last part of its help, where it has codes of its own."""
    if command and command not in OWN:
        return
    codes = codes_of(command)
    with formatter.section("Exit codes, of several the highest" if 5 in codes else "Exit codes"):
        formatter.write_dl([(str(code), meaning) for code, meaning in codes.items()])
