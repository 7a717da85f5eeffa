# key {package: text}   state {version: text | null, held: bool, needed_by: [text]}
from __future__ import annotations

from winhost.agent.linux_head import *

# A call without a key lists these, installed or not: what the path desires is compared with them.
KNOWN_PACKAGES = (
    "containerd.io",
    "docker-ce",
    "docker-ce-cli",
    "docker.io",
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
    "openssh-server",
)


@reads("DebianPackage", package=text_check(r"[a-z0-9][a-z0-9+.-]+", "the name of a package"))
def debian_packages(key: Key | None) -> Found:
    if find_program("dpkg-query") is None:
        raise NotThereYet("LinuxSystem")
    for name in [key["package"]] if key else KNOWN_PACKAGES:
        yield {"package": name}, debian_package(name)


def debian_package(name: str) -> State:
    found = packages().get(name)
    needed_by = sorted(other for other, package in packages().items() if name in package.needs)
    return {"version": found.version if found else None, "held": found.held if found else False, "needed_by": needed_by}


@changes("DebianPackage", "version", "held")
def change_debian_package(key: Key, desired: State, how: State) -> None:
    name = key["package"]
    await_packages(how)
    mark_for_it(name)
    if desired.get("held") is False and name in packages():
        run_checked("apt-mark", "unhold", name)
        ONCE.clear()
    if "version" in desired:
        if desired["version"] is None:
            purge(name, how)
        else:
            install(
                name, check_text(r"[A-Za-z0-9](?:[A-Za-z0-9.+:~-]*[A-Za-z0-9])?", desired["version"], "a version"), how
            )
    if desired.get("held") is True:
        run_checked("apt-mark", "hold", name)


def install(name: str, version: str, how: State) -> None:
    before = packages()
    if name in before and before[name].held:
        raise wrong_state(f"{name} is held at {before[name].version}.")
    exact = exactly(name, version)
    asked = [f"{each}={at}" for each, at in exact.items()]
    planned = apt_get(how, "--simulate", "install", *asked)
    leaving = listed("Remv|Purg", planned)
    if leaving:
        raise AgentFault("Winhost.WouldRemove", "ResourceExists", f"It would remove {', '.join(leaving)}.", "apt-get")
    refuse_gpu_driver_in_wsl(listed("Inst", planned))
    by_themselves = set(run_checked("apt-mark", "showauto").split())
    # What is named is marked as asked for; but these are here only for the sake of the one.
    for_it = [each for each in exact if each != name and (each in by_themselves or each not in before)]
    put(for_it_file(name), json.dumps(for_it) + "\n")  # apt goes on where its agent is killed, and then nobody marks
    try:
        if name in before:
            apt_get(how, "install", *asked)
        else:
            install_new(name, asked, [each for each in listed("Inst", planned) if each not in before], how)
    except BaseException:
        remove(for_it_file(name))
        raise
    ONCE.clear()
    mark_for_it(name)


def install_new(name: str, asked: list[str], brought: list[str], how: State) -> None:
    # Before the change: what is installed when the machine goes down half-way is ours too.
    put(brought_file(name), json.dumps(sorted({*brought, *brought_with(name)})) + "\n")
    try:
        apt_get(how, "install", *asked)
    except BaseException:
        if run("dpkg-query", "--show", name).code != 0:
            remove(brought_file(name))
        raise


def mark_for_it(name: str) -> None:
    """Mark packages that came as dependencies of a package, if that was not done yet."""
    noted = read_record(for_it_file(name))
    if noted is None:
        return
    for_it = [each for each in noted if each in packages()]
    if for_it:
        run_checked("apt-mark", "auto", *for_it)
    remove(for_it_file(name))


def exactly(name: str, version: str) -> dict[str, str]:
    """The package and all that it wants in one exact version: apt would take the newest, and then give up."""
    found: dict[str, str] = {}
    new = {name: version}
    while new:
        each, exact = new.popitem()
        shown_ = run("apt-cache", "show", "--no-all-versions", f"{each}={exact}").output
        if f"\nVersion: {exact}\n" in shown_:
            found[each] = exact
            depends = " ".join(re.findall(r"^(?:Pre-)?Depends: (.*)$", shown_, re.MULTILINE))
            desired = re.findall(r"([a-z0-9][a-z0-9+.-]+) \(= ([^)|]+)\)", depends)
            new.update((other, at) for other, at in desired if other not in found)
        elif each == name:
            raise AgentFault("Winhost.NoSuchVersion", "ObjectNotFound", f"No source has {name} {version}.", "apt-cache")
    return found


def listed(kinds: str, output: str) -> list[str]:
    """Packages that a simulation names."""
    return re.findall(rf"^(?:{kinds}) ([a-z0-9][a-z0-9+.-]+)", output, re.MULTILINE)


def brought_file(name: str) -> str:
    """The file that lists what winhost installed with a package; it exists for packages of winhost's only."""
    return f"{STATE_FOLDER}/packages/{name}.json"


def brought_with(name: str) -> set[str]:
    return set(read_record(brought_file(name)) or ())


def for_it_file(name: str) -> str:
    """The file that lists what apt is to take for installed by itself, until it does."""
    return f"{STATE_FOLDER}/packages/{name}.for-it"


def purge(name: str, how: State) -> None:
    if file_status(brought_file(name)) is None:
        raise AgentFault("Winhost.NotOurs", "PermissionDenied", f"{name} was not installed by winhost; it stays.")
    brought = brought_with(name) - {name}
    with_it = {name, *(each for each in brought if each in packages())}
    going = set(listed("Remv|Purg", apt_get(how, "--simulate", "purge", name)))
    others = ", ".join(sorted(going - with_it))
    if others:
        raise AgentFault("Winhost.InUse", "ResourceBusy", f"Needed by {others}.", "apt-get")
    apt_get(how, "purge", *sorted(going or {name}))
    sweep(brought, how)
    remove(brought_file(name))


def sweep(brought: set[str], how: State) -> None:
    """Purge packages that came with it and that nothing else needs now."""
    idle = set(listed("Remv|Purg", apt_get(how, "--simulate", "autoremove", "--purge"))) & brought
    if idle and set(listed("Remv|Purg", apt_get(how, "--simulate", "purge", *sorted(idle)))) == idle:
        apt_get(how, "purge", *sorted(idle))
