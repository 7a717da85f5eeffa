"""The meaning of exit codes: the one table that `--help` shows, whole for winhost and of each command that has
its own.
"""

from collections.abc import Mapping

import click

GENERAL: Mapping[int, str] = {
    0: "success",
    1: "failure, or a run that stopped after changing something",
    2: "wrong usage: nothing was done",
    3: "refused by a verdict",
    4: "drift: something differs, or is not as planned",
    5: "a host is unreachable",
    130: "stopped with Ctrl-C",
    141: "nobody reads the output any more (closed pipe)",
}
_EVERYWHERE = (0, 1, 2, 130, 141)
_UNREACHED = {5: GENERAL[5]}
_RUN = {
    3: "refused by a verdict, possibly one found at a later stage",
    4: "a host has changed since it was planned, or is not as planned in the end",
    **_UNREACHED,
}
_LINT = {
    0: "no defect is left; advice does not count",
    1: "a defect is left: something does not start, is not as written, exposes or destroys; with --strict: or advice",
}

# Command → what a code says of it alone. A test holds each command to those.
OWN: Mapping[str, Mapping[int, str]] = {
    "host add": {1: "failure, or the host cannot be managed as it is", **_UNREACHED},
    "host list": _UNREACHED,
    "host remove": _UNREACHED,
    "host test": {1: "failure, or a host cannot be managed as it is", **_UNREACHED},
    "detect": _UNREACHED,
    "probe": _UNREACHED,
    "assess": {3: "no option, or not that of --path, works on a host and meets the requirements", **_UNREACHED},
    "models show": _UNREACHED,
    "report": _UNREACHED,
    "diff": {0: "no difference", 4: "the host or its verdicts changed"},
    "explain": {0: "explained", 1: "nothing is known of the text"},
    "plan": {0: "planned", 3: "refused by a verdict, or the option must be named with --path", **_UNREACHED},
    "up": {0: "everything is served", **_RUN},
    "apply": {0: "applied; with --check: can be applied", **_RUN},
    "resume": {0: "applied", **_RUN},
    "rollback": {
        0: "rolled back",
        1: "failure, or partly rolled back: later changes depend on the rest, or it could not be checked",
        4: "something is neither as the run left it nor in its original state",
        **_UNREACHED,
    },
    "down": {
        0: "undone, or nothing to undo",
        1: "failure, or partly undone: later changes depend on the rest, or it could not be checked",
        4: "something is neither as up left it nor in its original state",
        **_UNREACHED,
    },
    "boot": {0: "restarting, or the other system is up", 1: "failure, or the system of before came up", **_UNREACHED},
    "verify": {0: "as planned", 4: "something is not as planned", **_UNREACHED},
    "lint wslconfig": _LINT,
    "lint wslconf": _LINT,
    "lint autoinstall": _LINT,
    "install plan": {3: "the host or its disks are not ready for it"},
    "install bmc": {3: "the BMC is not shown to be that of the host, or has no free drive", **_UNREACHED},
    "install media": {
        1: "the new system was not seen in time",
        3: "the media would not start, or no wipe was consented to",
    },
    "render compose": {3: "no profile can serve the workload on that machine"},
    "render kubernetes": {3: "that machine cannot be a node that serves the workload"},
    "lint serve": _LINT,
    "lint docker-daemon": _LINT,
    "lint cdi": _LINT,
    "serve profile": {3: "no profile can serve the workload on that host"},
    "serve up": {0: "everything serves", 1: "something did not start, or not in time", **_UNREACHED},
    "serve status": {0: "every model is served", 4: "something does not serve", **_UNREACHED},
    "serve logs": _UNREACHED,
    **{f"serve keys {verb}": _UNREACHED for verb in ("list", "add", "limit", "revoke")},
    "serve test": {0: "every request was answered as it should be", 1: "one was not", **_UNREACHED},
    "status": {4: "something does not serve", **_UNREACHED},
    "chat": {1: "failure, or no whole answer", **_UNREACHED},
    "open": _UNREACHED,
    "yield": {1: "failure, or a model that did not leave in time", **_UNREACHED},
    "serve down": {0: "stopped", 1: "something did not stop in time", **_UNREACHED},
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
    with formatter.section("Exit codes (highest of all hosts)" if 5 in codes else "Exit codes"):
        formatter.write_dl([(str(code), meaning) for code, meaning in codes.items()])
