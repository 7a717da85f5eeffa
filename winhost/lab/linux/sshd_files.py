"""The files of sshd, as the script makes them that Windows runs inside a distro (wsl_conf/inside.ps1)."""

from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

SSHD_FILE = "/etc/ssh/sshd_config.d/10-winhost.conf"
SSH_UNIT_FILE = "/etc/systemd/system/ssh.service.d/winhost.conf"
_SSHD = """\
# Written by winhost.
ListenAddress {}:{}
PubkeyAuthentication yes
AuthenticationMethods publickey
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitEmptyPasswords no
PermitRootLogin prohibit-password
AllowAgentForwarding no
X11Forwarding no
ClientAliveInterval 15
ClientAliveCountMax 4
"""
_ONLY_FROM = """\
Match Address *,!127.0.0.0/8,!::1/128{}
    DenyUsers *
"""
SSH_UNIT = """\
# Written by winhost.
[Unit]
Wants=network-online.target
After=network-online.target
StartLimitIntervalSec=0

[Service]
Restart=on-failure
RestartSec=2
"""


def sshd_file(listen: IPv4Address | IPv6Address, port: int | None = 22, allowed: Sequence[str] | None = None) -> str:
    """A drop-in for sshd: keys only, root by key only, on one address, from some networks or from everywhere.

    A lost controller is noticed in a minute.
    """
    text = _SSHD.format(f"[{listen}]" if listen.version == 6 else listen, port)
    return text + _ONLY_FROM.format("".join(f",!{each}" for each in allowed)) if allowed else text
