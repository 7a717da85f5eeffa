"""Late commands: they run in the installer, and the new system is a folder, /target."""

import re
from collections.abc import Iterator

from winhost.autoinstall.autoinstall_file import AutoinstallContext
from winhost.findings.finding import Found

_DOCUMENT = re.compile(r"<<-?\s*(['\"]?)(\w+)\1[^\n]*\n.*?(?:\n[ \t]*\2[ \t]*(?=\n|$)|\Z)", re.DOTALL)
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"")
_NEXT = re.compile(r"\n|;|&&|\|\|?|\bthen\b|\bdo\b|\belse\b")
_BEFORE = re.compile(r"^(?:\s|!|\{|\(|if\b|sudo(?:\s+-\S+)*|env\b|[A-Za-z_]\w*=\S*)*")
_ELSEWHERE = re.compile(r"/target|chroot|in-target|--root|--prefix|\s-R\b")
_SYSTEM = re.compile(
    r"(?:systemctl(?:\s+-\S+)*\s+(?:enable|disable|mask|unmask|set-default)|useradd|adduser|usermod|groupadd|chpasswd|passwd"
    r"|update-grub2?|update-initramfs|grub-install|ufw|timedatectl\s+set|hostnamectl\s+set|dpkg-reconfigure)\b"
)
_PACKAGES = re.compile(
    r"(?:apt(?:-get)?(?:\s+-\S+)*\s+(?:install|upgrade|dist-upgrade|full-upgrade|purge|remove)|snap\s+install)\b"
)


def late_commands(context: AutoinstallContext) -> Iterator[Found]:
    """Commands that were meant for the new system and change the installer's own."""
    listed = context.get("late-commands")
    for at, command in enumerate(listed if isinstance(listed, list) else ()):
        text = " ".join(map(str, command)) if isinstance(command, list) else str(command)
        for code, shown in dict.fromkeys(_outside(text)):
            yield context.found(("late-commands", at), code, command=shown)


def _outside(text: str) -> Iterator[tuple[str, str]]:
    """Yield the code and the first words of each command in a shell's text that names nothing of the new system."""
    plain = _QUOTED.sub(lambda quoted: " " * len(quoted[0]), _DOCUMENT.sub("", text.replace("\\\n", "  ")))
    for part in _NEXT.split(plain):
        command = " ".join(_BEFORE.sub("", part).split())
        for pattern, code in ((_SYSTEM, "late-command-outside"), (_PACKAGES, "late-packages-outside")):
            if (found := pattern.match(command)) and not _ELSEWHERE.search(command):
                yield code, found[0] + " \u2026" * (found.end() < len(command))  # the rest may hold a secret
