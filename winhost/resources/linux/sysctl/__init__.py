"""Settings of the kernel."""

from winhost.core.rules import Condition, ConsentRule
from winhost.resources.base import ResourceType, State, resource
from winhost.resources.shared import ACCESS, DISTROS
from winhost.resources.values import or_nothing, text

_WORDS = text(r"[!-~]+( [!-~]+)*", "words with one space between them")


@resource(
    ResourceType(
        "Sysctl",
        title="settings of the kernel",
        order=35,
        key=("name",),
        sets={"live": _WORDS, "at_boot": or_nothing(_WORDS)},
        requires=ACCESS,
        asks=("network",),
        risks=tuple(
            ConsentRule("network", (Condition("name", of="key", starts_with=each),))
            for each in ("net.ipv4.", "net.ipv6.", "net.netfilter.", "net.bridge.")
        ),
        within=DISTROS,
    )
)
class Sysctl(State):
    """live: what holds now, with one space for each gap; at_boot: what winhost's own file sets with each start
    (`/etc/sysctl.d/99-winhost-NAME.conf`), null where it sets nothing. What routes packets may cut SSH access.
    """

    live: str
    at_boot: str | None
