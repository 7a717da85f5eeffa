# key {package: text}   state {version: text | null, held: bool, needed_by: [text]}
from __future__ import annotations

from winhost.agent.linux_head import *

# A call without a key lists these packages, installed or not. A path's desired packages are compared with them.
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
    mark_auto_packages(name)
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
    exact = exact_versions(name, version)
    asked = [f"{each}={at}" for each, at in exact.items()]
    planned = apt_get(how, "--simulate", "install", *asked)
    leaving = listed("Remv|Purg", planned)
    if leaving:
        raise AgentFault("Winhost.WouldRemove", "ResourceExists", f"It would remove {', '.join(leaving)}.", "apt-get")
    refuse_gpu_driver_in_wsl(listed("Inst", planned))
    by_themselves = set(run_checked("apt-mark", "showauto").split())
    # apt marks packages on its command line as manually installed. These are only dependencies, so they are marked as
    # automatic afterwards. The list is written first, because apt continues if its agent is killed.
    auto = [each for each in exact if each != name and (each in by_themselves or each not in before)]
    put(auto_packages_file(name), json.dumps(auto) + "\n")
    try:
        if name in before:
            apt_get(how, "install", *asked)
        else:
            install_new(name, asked, [each for each in listed("Inst", planned) if each not in before], how)
    except BaseException:
        remove(auto_packages_file(name))
        raise
    ONCE.clear()
    mark_auto_packages(name)


def install_new(name: str, asked: list[str], brought: list[str], how: State) -> None:
    # Recorded before the change, so that the packages are known to be ours even if the machine goes down meanwhile.
    put(installed_packages_file(name), json.dumps(sorted({*brought, *packages_installed_with(name)})) + "\n")
    try:
        apt_get(how, "install", *asked)
    except BaseException:
        if run("dpkg-query", "--show", name).code != 0:
            remove(installed_packages_file(name))
        raise


def mark_auto_packages(name: str) -> None:
    """Mark dependencies of a package as automatically installed, if that was not done yet."""
    recorded_names = read_record(auto_packages_file(name))
    if recorded_names is None:
        return
    auto = [each for each in recorded_names if each in packages()]
    if auto:
        run_checked("apt-mark", "auto", *auto)
    remove(auto_packages_file(name))


def exact_versions(name: str, version: str) -> dict[str, str]:
    """Return the package and the dependencies that it needs in one exact version.

    Without these versions apt would choose the newest ones, and then fail.
    """
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
    """Return the packages in the output of a simulation that have these kinds of lines."""
    return re.findall(rf"^(?:{kinds}) ([a-z0-9][a-z0-9+.-]+)", output, re.MULTILINE)


def installed_packages_file(name: str) -> str:
    """Return the path of the list of packages that winhost installed with a package, which only exists for those."""
    return f"{STATE_FOLDER}/packages/{name}.json"


def packages_installed_with(name: str) -> set[str]:
    return set(read_record(installed_packages_file(name)) or ())


def auto_packages_file(name: str) -> str:
    """Return the path of the list of packages that are still to be marked as automatically installed."""
    return f"{STATE_FOLDER}/packages/{name}.for-it"


def purge(name: str, how: State) -> None:
    if file_status(installed_packages_file(name)) is None:
        raise AgentFault("Winhost.NotOurs", "PermissionDenied", f"{name} was not installed by winhost; it stays.")
    brought = packages_installed_with(name) - {name}
    with_it = {name, *(each for each in brought if each in packages())}
    going = set(listed("Remv|Purg", apt_get(how, "--simulate", "purge", name)))
    others = ", ".join(sorted(going - with_it))
    if others:
        raise AgentFault("Winhost.InUse", "ResourceBusy", f"Needed by {others}.", "apt-get")
    apt_get(how, "purge", *sorted(going or {name}))
    purge_unneeded(brought, how)
    remove(installed_packages_file(name))


def purge_unneeded(brought: set[str], how: State) -> None:
    """Purge packages that were installed with it and that no other package needs."""
    idle = set(listed("Remv|Purg", apt_get(how, "--simulate", "autoremove", "--purge"))) & brought
    if idle and set(listed("Remv|Purg", apt_get(how, "--simulate", "purge", *sorted(idle)))) == idle:
        apt_get(how, "purge", *sorted(idle))
