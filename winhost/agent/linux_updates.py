# Part of the agent, and of what `winhost serve` sends: who gives security updates for the gateway's library.
"""By the releases of apt's sources, as apt itself has them. Python 3.8 can read it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from winhost.agent.linux_agent import place_of, run

if TYPE_CHECKING:  # Python 3.8 cannot say these
    from winhost.agent.linux_agent import State

LIBRARY = "python3-aiohttp"


def library() -> State | None:
    """None where there is no apt."""
    if place_of("apt-cache") is None or place_of("dpkg-query") is None:
        return None
    shown = run("dpkg-query", "--show", "--showformat=${Version}", LIBRARY)
    version = shown.output.strip() if shown.code == 0 else None
    return {"package": LIBRARY, "version": version or None, "updates": updates_by(run("apt-cache", "policy").output)}


def updates_by(policy: str) -> str:
    """distribution: Debian's security team; ubuntu-pro: Canonical, with a subscription; community: volunteers, for
    Ubuntu's universe; none: no source of them is set up.
    """
    found = [line.strip()[8:].split(",") for line in policy.splitlines() if line.strip().startswith("release ")]
    releases = [dict(part.split("=", 1) for part in parts if "=" in part) for parts in found]
    if any(each.get("l") == "Debian-Security" for each in releases):
        return "distribution"
    if any(each.get("o", "").startswith("UbuntuESMApps") for each in releases):
        return "ubuntu-pro"
    universe = [each for each in releases if each.get("o") == "Ubuntu" and each.get("c") == "universe"]
    return "community" if any(each.get("a", "").endswith("-security") for each in universe) else "none"
