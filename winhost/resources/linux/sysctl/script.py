# key {name: text}   state {live: text, at_boot: text | null}
from __future__ import annotations

from winhost.agent.linux_head import *

# A call without a key lists those of these parameters that the kernel has.
KNOWN_SYSCTLS = ("kernel.numa_balancing", "net.core.somaxconn", "vm.max_map_count", "vm.swappiness")
CUTTING_SYSCTLS = ("net.ipv4.", "net.ipv6.", "net.netfilter.", "net.bridge.")


@reads("Sysctl", name=ANY_TEXT)
def sysctls(key: Key | None) -> Found:
    for name in [key["name"]] if key else KNOWN_SYSCTLS:
        if file_status(sysctl_path(name)) is not None:
            yield {"name": name}, sysctl(name)


def sysctl_path(name: str) -> str:
    """Return the path of a parameter. Dots separate the parts of its name; a slash stands for a dot within a part."""
    check_text(r"[a-z0-9_-]+(?:\.[A-Za-z0-9_-]+(?:/[A-Za-z0-9_-]+)*)+", name, "the name of a setting of the kernel")
    return "/proc/sys/" + name.translate(str.maketrans("./", "/."))


def sysctl_file(name: str) -> str:
    return "/etc/sysctl.d/99-winhost-{}.conf".format(name.replace("/", "-"))


def sysctl(name: str) -> State:
    return {
        "live": value(lambda: normalize_spaces(read_file(sysctl_path(name)))),
        "at_boot": value(lambda: boot_value(name)),
    }


def normalize_spaces(data: bytes) -> str:
    return " ".join(data.decode("ascii").split())


def boot_value(name: str) -> str | None:
    lines = (read_text(sysctl_file(name)) or "").splitlines()
    found = [line.partition("=")[2].strip() for line in lines if line.partition("=")[0].strip() == name]
    return found[-1] if found else None


@changes("Sysctl", "live", "at_boot", cuts=lambda key: key["name"].startswith(CUTTING_SYSCTLS))
def change_sysctl(key: Key, desired: State, how: State) -> None:
    name = key["name"]
    for each in desired.values():
        if each is not None:
            check_text(r"[!-~]+( [!-~]+)*", each, "words with one space between them")
    # The live value comes first, because the kernel may refuse it. Then the file is not written.
    if "live" in desired:
        set_live(name, desired["live"])
    if "at_boot" in desired:
        words = desired["at_boot"]
        put_or_remove(sysctl_file(name), None if words is None else f"# Written by winhost.\n{name} = {words}\n")


def set_live(name: str, words: str) -> None:
    before = normalize_spaces(read_file(sysctl_path(name)))
    write_to_kernel(sysctl_path(name), words + "\n")
    found = normalize_spaces(read_file(sysctl_path(name)))
    if found != words:
        write_to_kernel(sysctl_path(name), before + "\n")
        raise AgentFault("Winhost.NotTaken", "InvalidResult", f"The kernel made {found!r} of {words!r} for {name}.")
