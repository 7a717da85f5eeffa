"""Rules on settings: values, versions and policies, and what has no effect or harms with what else is set."""

from collections.abc import Iterator

from packaging.version import Version

from winhost.wslconfig.findings import LintFinding
from winhost.wslconfig.key_values import read
from winhost.wslconfig.known_keys import Key
from winhost.wslconfig.lint_context import Reader
from winhost.wslconfig.values_in_effect import valid

BRIDGE_WARNED, BRIDGE_GONE, BRIDGE_BACK = Version("2.4.5"), Version("2.5.4"), Version("2.5.6")  # microsoft/WSL #13211


def values(reader: Reader) -> Iterator[LintFinding]:
    """Values that WSL does not take, or takes for others."""
    for key, line in reader.keys:
        written = line.text[line.raw.start : line.raw.stop]
        if reader.file.dialect.windows and not written.isascii() and key.type != "mac":
            yield reader.found(line, "not-ascii", value=repr(line.value))
            continue
        try:
            value = read(key, line.value)
        except ValueError as error:
            code = "bad-mac" if key.type == "mac" else "bad-value"
            right = f"{error} ({key.note})" if key.note else error
            yield reader.found(line, code, key=key, value=repr(line.value), right=right, default=_default(key))
            continue
        slips = [char for char in line.value if char in "\n\t\b"]
        if key.type == "path" and slips:
            yield reader.found(line, "escaped-path", char=f"`{slips[0]}`")
        if key.type == "mac" and int(str(value)[:2], 16) & 1:
            yield reader.found(line, "group-mac", value=value)


def _default(key: Key) -> str:
    return f" ({key.default})" if key.default else ""


def versions(reader: Reader) -> Iterator[LintFinding]:
    """Keys and words that are newer than this WSL."""
    for key, line in reader.keys:
        word = str(valid(key, line))
        what, since = (f"{key}={word}", key.values_since.get(word)) if word in key.values_since else (key, key.since)
        if since is None:
            continue
        told = f"{since} ({key.since_doubt})" if key.since_doubt else since
        if reader.version is None:
            yield reader.found(line, "needs-version", what=what, since=told)
        elif reader.version < Version(since):
            yield reader.found(line, "too-new", what=what, since=told, version=reader.version)


def policies(reader: Reader) -> Iterator[LintFinding]:
    """Settings that the machine's owner has forbidden."""
    for key, line in reader.keys:
        if key.policy in reader.forbidden and valid(key, line) not in (None, *key.allowed):
            yield reader.found(line, "policy", key=key, policy=key.policy, default=_default(key))


# --- Settings together -----------------------------------------------------------------------------------------------


def without_effect(reader: Reader) -> Iterator[LintFinding]:
    """Settings that do nothing, or harm, with the others."""
    for key, line in reader.keys:
        if key.modes and reader.mode not in key.modes:
            yield reader.found(line, "other-mode", key=key, mode=reader.mode, modes=" or ".join(key.modes))
        for name, value in key.idle_when.items():
            if reader.values.get(name) == value:
                yield reader.found(line, "idle", key=key, other=name, value=str(value).lower())
        if key.needs and not reader.values.get(key.needs):
            yield reader.found(line, "needs-key", key=key, needs=key.needs)
        value = valid(key, line)
        if value in key.beware:
            yield reader.found(line, "beware", key=key, value=str(value).lower(), what=key.beware[value])


def bridged(reader: Reader) -> Iterator[LintFinding]:
    """A bridge lacks a switch, an address of its own, or a WSL that can bridge."""
    line = reader.line("wsl2.networkingMode")
    if line is None or reader.mode != "bridged":
        return
    if not reader.values.get("wsl2.vmSwitch"):
        yield reader.found(line, "bridged-no-switch")
    if "wsl2.macAddress" not in reader.values:
        yield reader.found(line, "bridged-same-mac")
    version = reader.version
    if version and BRIDGE_GONE <= version < BRIDGE_BACK:
        yield reader.found(line, "bridged-gone", version=version)
    elif version and BRIDGE_WARNED <= version < BRIDGE_GONE:
        yield reader.found(line, "bridged-warned", version=version)


def lifetime(reader: Reader) -> Iterator[LintFinding]:
    """A VM kept alive whose distro is not: it ends with the last Windows process on it (microsoft/WSL #8654, #8854)."""
    line = reader.line("wsl2.vmIdleTimeout")
    if line and _never(reader, "wsl2.vmIdleTimeout") and not _never(reader, "general.instanceIdleTimeout"):
        yield reader.found(line, "short-lived")


def _never(reader: Reader, key: str) -> bool:
    value = reader.values.get(key)
    return isinstance(value, int) and value < 0
