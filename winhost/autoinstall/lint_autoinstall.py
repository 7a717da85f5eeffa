"""Lint an autoinstall file: what Ubuntu's installer accepts, and what then wipes disks, stops, waits or tells secrets.

The shape of the file comes first (lint_shape.py). The installer's own schema ends there: it says of `storage` that it
is an object, and allows any other key.
"""

from collections.abc import Sequence

from packaging.version import Version

from winhost.autoinstall import lint_actions, lint_disks, lint_layout, lint_secrets, lint_shape, lint_top
from winhost.autoinstall.autoinstall_file import Unreadable, parsed_autoinstall
from winhost.autoinstall.lint_document import PREFIX, ROWS, AutoinstallContext, KnownDisk
from winhost.findings.finding import Finding, Found

RULES = (
    *(lint_shape.shapes, lint_shape.ids, lint_top.sections, lint_top.top_keys, lint_top.interactive, lint_top.account),
    *(lint_top.network, lint_layout.storage, lint_layout.layout, lint_layout.disk_matches),
    *(lint_actions.action_keys, lint_actions.disks, lint_actions.partitions, lint_actions.formats),
    *(lint_actions.mounts, lint_actions.loaders, lint_disks.against_facts, lint_secrets.secrets),
)


def lint_autoinstall(
    data: bytes, *, installer: Version | None = None, disks: Sequence[KnownDisk] = ()
) -> list[Finding]:
    """All findings, by line and column. installer: the version of the media; disks: of the machine."""
    text = data.decode("utf-8-sig", "replace")
    try:
        file = parsed_autoinstall(text)
    except Unreadable as error:
        return [ROWS.tell(PREFIX, Found("unreadable", 0, {"why": error.why}), error.place, "the file")]
    context = AutoinstallContext(file, installer, disks)
    found = [each for rule in RULES for each in rule(context)]
    return sorted(found, key=lambda each: (each.line, each.column))
