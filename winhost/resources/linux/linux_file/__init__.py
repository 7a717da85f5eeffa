"""Files of a Linux machine that winhost writes."""

from winhost.core.rules import UndoRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS, OF_A_NODE, ON_FILES_OF_SSH, PACKAGES, PLAIN_HTTP, UNITS
from winhost.resources.values import or_nothing, text


@resource(
    ResourceType(
        "LinuxFile",
        title="files in Linux",
        order=30,
        key=("path",),
        sets={
            "text": or_nothing(text(r"(?s).*", "text")),
            "link": or_nothing(text(r"[^\0]+", "where a link leads")),
            "mode": or_nothing(text(r"0[0-7]{3}", "a mode, as 0644")),
            "owner": or_nothing(text(r"[^:]+:[^:]+", "an owner, as root:root")),
        },
        after=("LinuxFolder", "PythonVenv"),  # a unit that runs is restarted where its file changes, with what it names
        requires=ACCESS,
        asks=("network",),
        risks=(*ON_FILES_OF_SSH, PLAIN_HTTP, OF_A_NODE),
        lasts=lambda change: 900 if change.key["path"] == "/etc/cloud/cloud-init.disabled" else 0,  # waits for its end
        rests=(PACKAGES, UNITS),
        within=DISTROS,
        # Without its text there is no mode to put back.
        undo=UndoRule(whole=True),
    )
)
class LinuxFile(State):
    """A file by its path, of those that winhost writes; all null where there is none.

    link: where it leads, if it is a symbolic link. No link is followed, and a change that replaces one sets `link:
    null`. A new text is judged by the program that will read it, before it takes the place of the old one: files of
    sshd, sudo, netplan, nftables, systemd and Docker. What decides over SSH access (sshd, sudo, netplan) is undone by
    the machine itself unless winhost gets in again.
    """

    text: str | None
    link: str | None
    mode: str | None
    owner: str | None
