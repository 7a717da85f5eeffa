"""Rules on the file as a whole: what the installer does not know, waits for or stops at."""

from collections.abc import Iterator

from winhost.autoinstall.autoinstall_file import Delivery
from winhost.autoinstall.lint_document import AutoinstallContext, schema
from winhost.findings.finding import Finding

Findings = Iterator[Finding]


def sections(context: AutoinstallContext) -> Findings:
    """What surrounds the section: only a cloud-config may have other keys beside it."""
    file = context.file
    for loc in file.twice:
        yield context.found(loc[len(file.at) :], "key-twice", key=loc[-1])
    if file.delivery is Delivery.CLOUD_CONFIG and not file.section:
        yield context.found((), "no-section")
    elif file.delivery is Delivery.WRAPPED:
        for key in file.whole:
            if key != "autoinstall":
                yield context.found((), "beside-section", key=key)


def top_keys(context: AutoinstallContext) -> Findings:
    """A misspelt key is passed over, where the installer does not refuse it."""
    sections = schema()["sections"]
    for keys, shape in (((), sections), (("storage",), sections["storage"]), (("ssh",), sections["ssh?"])):
        for loc, key, near in context.unknown(keys, context.mapping(*keys), shape):
            yield context.found(loc, "unknown-key", key=key, near=near)


def interactive(context: AutoinstallContext) -> Findings:
    """Screens that wait."""
    names = context.get("interactive-sections")
    if names:
        listed = names if isinstance(names, list) else [names]
        yield context.found(("interactive-sections",), "interactive", sections=", ".join(map(str, listed)))


def account(context: AutoinstallContext) -> Findings:
    """Somebody must be able to log on."""
    asked = context.get("interactive-sections") or []
    told = {"identity", "user-data", "active-directory"} & set(context.file.section) or {"identity", "*"} & set(asked)
    server = "server" in str(context.get("source", "id") or "server")
    if not told and server and context.get("storage", "layout", "reset-partition-only") is not True:
        yield context.found((), "no-account")
    if not _can_log_on(context):
        yield context.found(("ssh",), "locked-out")


def _can_log_on(context: AutoinstallContext) -> bool:
    ssh, users = context.mapping("ssh"), str(context.get("user-data"))
    keys = bool(ssh.get("authorized-keys")) or "ssh_authorized_keys" in users or "ssh_import_id" in users
    return ssh.get("install-server") is True and (keys or ssh.get("allow-pw") is True)


def network(context: AutoinstallContext) -> Findings:
    """What fails without a network."""
    if context.get("drivers", "install") is True:
        yield context.found(("drivers", "install"), "drivers")
    if context.get("apt", "fallback") in (None, "abort"):
        yield context.found(("apt",), "no-mirror")
