"""Settings inside the distro."""

from collections.abc import Mapping
from types import MappingProxyType

from winhost.core.answers import Json
from winhost.core.rules import DependentRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ENDS_DISTROS, WITHIN_DISTRO
from winhost.resources.values import or_nothing, text

_FILE = or_nothing(text(r"(?s)[^\0]*", "the text of a file"))
NO_CONF: Mapping[str, Json] = MappingProxyType({"conf": None, "network": None, "resolver": None})
_WAY_IN = DependentRule("WslAccess", on=("account", "distro"), unless=("active", (False,)))


@resource(
    ResourceType(
        "WslConf",
        title="settings inside the distro",
        order=340,
        key=("account", "distro"),
        sets={"conf": _FILE, "network": _FILE, "resolver": _FILE},
        after=("WslDistro",),
        requires="WslDistro",
        absent=NO_CONF,
        asks=("vm-stop",),
        risks=ENDS_DISTROS,
        dependents=(_WAY_IN,),
        within=WITHIN_DISTRO,
    )
)
class WslConf(State):
    """The files that a distro needs before it can be reached at all; everything else comes over SSH.

    conf: /etc/wsl.conf, without which systemd, and so sshd, does not run; network: the file of systemd-networkd with
    the address of a bridged distro without DHCP; resolver: /etc/resolv.conf. null: as the image and WSL have it, which
    comes back when it is set to null. While the distro does not run, the state is what winhost last wrote. A resource
    of its own, and no part of WslDistro: it can be changed, and its drift seen, without a new import.
    """

    conf: str | None
    network: str | None
    resolver: str | None
