"""Rules on settings: values, versions and policies, and what has no effect or harms with what else is set."""

from collections.abc import Iterator

from packaging.version import Version

from winhost.findings.finding import Finding
from winhost.wslconfig.key_values import read
from winhost.wslconfig.known_keys import Key
from winhost.wslconfig.lint_context import LintContext
from winhost.wslconfig.values_in_effect import valid

BRIDGE_WARNED, BRIDGE_GONE, BRIDGE_BACK = Version("2.4.5"), Version("2.5.4"), Version("2.5.6")  # microsoft/WSL #13211


def values(context: LintContext) -> Iterator[Finding]:
    """Values that WSL rejects or misreads."""
    for key, line in context.keys:
        written = line.text[line.raw.start : line.raw.stop]
        if context.file.dialect.narrow and not written.isascii() and key.type != "mac":
            yield context.found(line, "not-ascii", value=repr(line.value))
            continue
        try:
            value = read(key, line.value)
        except ValueError as error:
            code = "bad-mac" if key.type == "mac" else "bad-value"
            right = f"{error} ({key.note})" if key.note else error
            yield context.found(line, code, key=key, value=repr(line.value), right=right, default=_default(key))
            continue
        slips = [char for char in line.value if char in "\n\t\b"]
        if key.type == "path" and slips:
            yield context.found(line, "escaped-path", char=f"`{slips[0]}`")
        if key.type == "mac" and int(str(value)[:2], 16) & 1:
            yield context.found(line, "group-mac", value=value)


def _default(key: Key) -> str:
    return f" ({key.default})" if key.default else ""


def versions(context: LintContext) -> Iterator[Finding]:
    """Keys and values that this version of WSL does not know yet."""
    for key, line in context.keys:
        word = str(valid(key, line))
        what, since = (f"{key}={word}", key.values_since.get(word)) if word in key.values_since else (key, key.since)
        if since is None:
            if context.version is not None and context.version < Version(key.told_from):
                yield context.found(line, "untold", what=what, since=key.told_from, version=context.version)
            continue
        since_text = f"{since} ({key.since_doubt})" if key.since_doubt else since
        if context.version is None:
            yield context.found(line, "needs-version", what=what, since=since_text)
        elif context.version < Version(since):
            yield context.found(line, "too-new", what=what, since=since_text, version=context.version)


def policies(context: LintContext) -> Iterator[Finding]:
    """Settings that a policy of the machine forbids."""
    for key, line in context.keys:
        if key.policy in context.forbidden and valid(key, line) not in (None, *key.allowed):
            yield context.found(line, "policy", key=key, policy=key.policy, default=_default(key))


# --- Settings together -----------------------------------------------------------------------------------------------


def without_effect(context: LintContext) -> Iterator[Finding]:
    """Settings that have no effect, or do harm, in combination with others."""
    for key, line in context.keys:
        if key.modes and context.mode not in key.modes:
            yield context.found(line, "other-mode", key=key, mode=context.mode, modes=" or ".join(key.modes))
        for name, value in key.idle_when.items():
            if context.values.get(name) == value:
                yield context.found(line, "idle", key=key, other=name, value=str(value).lower())
        if key.needs and not context.values.get(key.needs):
            yield context.found(line, "needs-key", key=key, needs=key.needs)
        value = valid(key, line)
        if value in key.beware:
            shown = str(value).lower() if isinstance(value, bool) else value
            yield context.found(line, "beware", key=key, value=shown, what=key.beware[value])


def bridged(context: LintContext) -> Iterator[Finding]:
    """A bridge lacks a switch, an address of its own, or a WSL that can bridge."""
    line = context.line("wsl2.networkingMode")
    if line is None or context.mode != "bridged":
        return
    if not context.values.get("wsl2.vmSwitch"):
        yield context.found(line, "bridged-no-switch")
    if "wsl2.macAddress" not in context.values:
        yield context.found(line, "bridged-same-mac")
    version = context.version
    if version and BRIDGE_GONE <= version < BRIDGE_BACK:
        yield context.found(line, "bridged-gone", version=version)
    elif version and BRIDGE_WARNED <= version < BRIDGE_GONE:
        yield context.found(line, "bridged-warned", version=version)


def lifetime(context: LintContext) -> Iterator[Finding]:
    """A VM kept alive whose distro is not: it ends with the last Windows process on it (microsoft/WSL #8654, #8854)."""
    line = context.line("wsl2.vmIdleTimeout")
    if line and _never(context, "wsl2.vmIdleTimeout") and not _never(context, "general.instanceIdleTimeout"):
        yield context.found(line, "short-lived")


def _never(context: LintContext, key: str) -> bool:
    value = context.values.get(key)
    return isinstance(value, int) and value < 0
