"""The files of sshd as Windows writes them inside a distro: what its script there (wsl_conf) has for them."""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv6Address

from winhost.resources.windows.windows_scripts import inside_script

SSHD_FILE = "/etc/ssh/sshd_config.d/10-winhost.conf"
SSH_UNIT_FILE = "/etc/systemd/system/ssh.service.d/winhost.conf"


def _text_with(part: str) -> str:
    texts: list[str] = re.findall(r"<<END\n(.*?)END\n", inside_script(), re.DOTALL)
    return next(text for text in texts if part in text)


_SSHD = _text_with("ListenAddress ")
(_ONLY_FROM,) = re.findall(r"printf '(Match Address .*?)'", inside_script())
SSH_UNIT = _text_with("[Unit]")


def sshd_file(listen: IPv4Address | IPv6Address, port: int | None = 22, allowed: Sequence[str] | None = None) -> str:
    """A drop-in for sshd: keys only, root by key only, on one address, from some networks or from everywhere.

    A lost controller is noticed in a minute.
    """
    text = _SSHD.replace("$where", f"[{listen}]:{port}" if listen.version == 6 else f"{listen}:{port}")
    limits = _ONLY_FROM.replace("\\n", "\n") % "".join(f",!{each}" for each in allowed or ())
    return text + limits if allowed else text
