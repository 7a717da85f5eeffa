# key {name: text}   state {live: text, at_boot: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

# A call without a key lists these, where this kernel has them.
KNOWN_SYSCTLS = ("kernel.numa_balancing", "net.core.somaxconn", "vm.max_map_count", "vm.swappiness")
CUTTING_SYSCTLS = ("net.ipv4.", "net.ipv6.", "net.netfilter.", "net.bridge.")


@reads("Sysctl", name=ANY_TEXT)
def sysctls(key: Key | None) -> Found:
    for name in [key["name"]] if key else KNOWN_SYSCTLS:
        if file_status(sysctl_place(name)) is not None:
            yield {"name": name}, sysctl(name)


def sysctl_place(name: str) -> str:
    """Dots part a name, and a slash stands for a dot in the name of an adapter."""
    check_text(r"[a-z0-9_-]+(?:\.[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*)+", name, "the name of a setting of the kernel")
    return "/proc/sys/" + name.translate(str.maketrans("./", "/."))


def sysctl_file(name: str) -> str:
    return "/etc/sysctl.d/99-winhost-{}.conf".format(name.replace("/", "-"))


def sysctl(name: str) -> State:
    return {"live": value(lambda: words_of(read_file(sysctl_place(name)))), "at_boot": value(lambda: set_at_boot(name))}


def words_of(data: bytes) -> str:
    return " ".join(data.decode("ascii").split())


def set_at_boot(name: str) -> str | None:
    lines = (read_text(sysctl_file(name)) or "").splitlines()
    found = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == name]
    return found[-1] if found else None


@changes("Sysctl", "live", "at_boot", cuts=lambda key: key["name"].startswith(CUTTING_SYSCTLS))
def change_sysctl(key: Key, desired: State, how: State) -> None:
    name = key["name"]
    for each in desired.values():
        if each is not None:
            check_text(r"[!-~]+( [!-~]+)*", each, "words with one space between them")
    # First what the kernel may refuse: a file that it refuses would do so with every start.
    if "live" in desired:
        set_live(name, desired["live"])
    if "at_boot" in desired:
        words = desired["at_boot"]
        put_or_remove(sysctl_file(name), None if words is None else f"# Written by winhost.\n{name} = {words}\n")


def set_live(name: str, words: str) -> None:
    before = words_of(read_file(sysctl_place(name)))
    write_to_kernel(sysctl_place(name), words + "\n")
    found = words_of(read_file(sysctl_place(name)))
    if found != words:
        write_to_kernel(sysctl_place(name), before + "\n")
        raise AgentFault("Winhost.NotTaken", "InvalidResult", f"The kernel made {found!r} of {words!r} for {name}.")
