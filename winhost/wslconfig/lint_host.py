"""Rules that hold a file against the host whose WSL reads it."""

import re
from collections.abc import Iterator

from winhost.findings.finding import Finding
from winhost.model.errors import did_you_mean
from winhost.model.units import size
from winhost.wslconfig.lint_context import LintContext, finding

EXTERNAL = "external"
_DRIVE = re.compile(r"([A-Za-z]):")
_KERNELS = ("wsl2.kernel", "wsl2.kernelModules")
# MicrosoftDocs/WSL #1174: a file in UTF-16 was ignored. Of a mark before UTF-8 it says the same; nobody tried it since.
_MARKS = {b"\xff\xfe": ("in-box-encoding", "UTF-16"), b"\xef\xbb": ("in-box-mark", "a byte order mark")}


def unknown(context: LintContext) -> Iterator[Finding]:
    """What of the host could not be read, and so is not checked."""
    for what in context.host.unknown:
        yield finding(context.file.dialect, "host-unknown", (1, 1), what=what)


def mode(context: LintContext) -> Iterator[Finding]:
    """A network mode that this host cannot have."""
    line, why = context.line("wsl2.networkingMode"), context.host.no_modes.get(context.mode)
    if line is not None and why is not None:
        yield context.found(line, "no-bridge" if context.mode == "bridged" else "no-mirror", why=why)


def switch(context: LintContext) -> Iterator[Finding]:
    """A switch that is not there, or that leads nowhere."""
    line, switches = context.line("wsl2.vmSwitch"), context.host.switches
    name = str(context.values.get("wsl2.vmSwitch") or "")
    if line is None or switches is None or not name or context.mode != "bridged":
        return
    if name not in switches:
        near = did_you_mean(name, switches) or (f"; there is {', '.join(sorted(switches))}" if switches else "")
        yield context.found(line, "no-such-switch", name=repr(name), near=near)
    elif switches[name] != EXTERNAL:
        yield context.found(line, "switch-within", name=repr(name), kind=switches[name])


def sizes(context: LintContext) -> Iterator[Finding]:
    """More memory or processors than there are."""
    host = context.host
    for name, there, shown in (
        ("wsl2.memory", host.memory, size(host.memory) if host.memory else ""),
        ("wsl2.processors", host.processors, f"{host.processors} logical processors"),
    ):
        line, value = context.line(name), context.values.get(name)
        if line is not None and there is not None and isinstance(value, int) and value > there:
            yield context.found(line, "more-than-there", key=name, there=shown)
        elif name == "wsl2.memory" and line is not None and there and isinstance(value, int) and value > 0.9 * there:
            yield context.found(line, "little-left", there=shown)
        elif name == "wsl2.memory" and line is not None and host.vram and isinstance(value, int) and value < host.vram:
            yield context.found(line, "below-gpus", there=size(host.vram))


def drives(context: LintContext) -> Iterator[Finding]:
    """Files on a drive that is not there."""
    letters = context.host.drives
    for key, line in context.keys:
        found = _DRIVE.match(str(context.values.get(str(key)) or ""))
        if key.type != "path" or letters is None or found is None or found[1].upper() in letters:
            continue
        code = "no-drive-of-kernel" if str(key) in _KERNELS else "no-drive"
        yield context.found(line, code, key=key, drive=f"{found[1].upper()}:", there=", ".join(sorted(letters)))


def in_box(context: LintContext) -> Iterator[Finding]:
    """What the WSL that Windows brings does not know, or does not read."""
    if not context.host.in_box:
        return
    if mark := _MARKS.get(context.start):
        yield finding(context.file.dialect, mark[0], (1, 1), encoding=mark[1])
    for key, line in context.keys:
        if key.since or key.section != "wsl2":
            yield context.found(line, "in-box-key", key=key)


RULES = (unknown, mode, switch, sizes, drives, in_box)
