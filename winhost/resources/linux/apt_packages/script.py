# key {packages: text}   state {installed: bool | null, held: bool, to_add: [text], to_change: [text],
# to_change_foreign: [text], to_remove: [text], needed_by: [text], restart_due: bool}
from __future__ import annotations

import threading

from winhost.agent.linux_head import *

# A call without a key lists these sets, installed or not.
KNOWN_PACKAGE_SETS = (
    "containerd.io docker-ce docker-ce-cli",
    "criu",
    "docker.io",
    "nvidia-container-toolkit",
    "podman",
)
MODULES = "linux-modules-nvidia-"
BRANCH = "580-server"  # a long-lived branch, and the last one for GPUs before Turing
FABRIC_MANAGER = "nvidia-fabricmanager-580"  # of the same branch; it depends on the exact version of the driver
TRANSACTION_PROPERTIES = ("to_add", "to_change", "to_change_foreign", "to_remove")
NAME = r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](?::[a-z0-9]+)?"
VERSION = r"[A-Za-z0-9][A-Za-z0-9.+:~-]*"


class Transaction(NamedTuple):
    """One transaction of apt. added, removed: versions by name; changed: old and new versions."""

    added: dict[str, str]
    changed: dict[str, list[str]]
    removed: dict[str, str]


class Ledger(NamedTuple):
    """The changes that winhost made for a set, by which they are undone. held, by_itself: packages that were held, or
    marked as automatically installed, before; open: the transaction is unfinished.
    """

    added: dict[str, str]
    changed: dict[str, list[str]]
    removed: dict[str, str]
    held: list[str]
    by_itself: list[str]
    open: bool


@reads("AptPackages", packages=ANY_TEXT)
def apt_packages(key: Key | None) -> Found:
    if find_program("apt-get") is None:
        raise NotThereYet("LinuxSystem")
    if key is None:
        simulate_in_parallel()
    for wanted in [key["packages"]] if key else listed_sets():
        yield {"packages": wanted}, package_set(wanted)


def listed_sets() -> list[str]:
    return once("known sets", lambda: [*KNOWN_PACKAGE_SETS, *driver_sets()])


def driver_sets() -> list[str]:
    """Return the sets with NVIDIA's driver for the running kernel, with the open and the proprietary modules that
    Ubuntu builds and signs.

    They name metapackages, which bring the modules for future kernels. For a board with NVSwitches, sets with the
    fabric manager come first: in one transaction, apt selects versions that match.
    """
    flavour = os.uname().release.rsplit("-", 1)[-1]
    if in_wsl() or not re.fullmatch("[a-z]+", flavour):
        return []
    newer = [re.fullmatch(r"linux-(?:image-)?(?:generic|virtual)-(hwe-[0-9.]+)", name) for name in packages()]
    if flavour == "generic":
        flavour = "-".join([flavour, *sorted({found[1] for found in newer if found})[-1:]])
    return [
        f"{MODULES}{BRANCH}{open_}-{flavour} {fabric}nvidia-headless-no-dkms-{BRANCH}{open_} nvidia-utils-{BRANCH}"
        for fabric in ((f"{FABRIC_MANAGER} ", "") if has_nvswitches() else ("",))
        for open_ in ("-open", "")
    ]


def parse_package_set(wanted: str) -> dict[str, str]:
    """Parse a key into package names and versions; an empty version allows any."""
    words = wanted.split(" ")
    if not all(re.fullmatch(f"{NAME}(={VERSION})?", word) for word in words) or words != sorted(set(words)):
        raise bad_request(f"{wanted!r} is not a sorted list of packages, as: docker.io nvidia-utils-580=580.1-1")
    asked = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    if len(asked) != len(words):
        raise bad_request(f"{wanted!r} has a package twice.")
    return asked


def package_set(wanted: str) -> State:
    asked, ledger = parse_package_set(wanted), read_ledger(wanted)
    installed: bool | None = all(is_installed(*each) for each in asked.items())
    if ledger is not None and ledger.open:
        installed = None
    return {
        "installed": installed,
        "held": all(name in packages() and packages()[name].held for name in asked),
        **({name: [] for name in TRANSACTION_PROPERTIES} if installed else transaction_properties(asked)),
        "needed_by": needed_by(ledger),
        "restart_due": value(lambda: wanted.startswith(MODULES) and driver_awaits_restart()),
    }


def is_installed(name: str, version: str) -> bool:
    found = packages().get(name)
    return found is not None and version in ("", found.version)


def transaction_properties(asked: dict[str, str]) -> State:
    found = value(lambda: simulate_cached(asked))
    if not isinstance(found, Transaction):
        return dict.fromkeys(TRANSACTION_PROPERTIES, found)
    ours = winhost_packages()
    changes_ = {name: f"{name} {old} -> {new}" for name, (old, new) in found.changed.items()}
    return {
        "to_add": sorted(map(" ".join, found.added.items())),
        "to_change": sorted(text for name, text in changes_.items() if name in ours),
        "to_change_foreign": sorted(text for name, text in changes_.items() if name not in ours),
        "to_remove": sorted(map(" ".join, found.removed.items())),
    }


def driver_awaits_restart() -> bool:
    """Tell whether a restart would load another driver: the installed module differs from the loaded one, and was
    installed or removed since the boot. A module that was installed at boot and not loaded stays so after a restart.
    """
    if in_wsl() or loaded_driver() == read_module_field("version"):
        return False
    file = read_module_field("filename")
    found = file_status(os.path.realpath(file)) if file else None
    return found is None or found.st_ctime >= time.time() - seconds_since_boot()


def needed_by(ledger: Ledger | None) -> list[str]:
    added = set(ledger.added) if ledger else set()
    return sorted(name for name, each in packages().items() if name not in added and added & set(each.needs))


# ---- what apt would do


def simulate_in_parallel() -> None:
    """Simulate the installation of all missing sets in parallel, because apt needs more than half a second to start."""
    asked = [parse_package_set(each) for each in listed_sets()]
    lacking = [each for each in asked if not all(map(is_installed, each, each.values()))]
    if lacking:
        value(lambda: candidate_versions(set().union(*lacking)))  # once, for all of them
    threads = [threading.Thread(target=value, args=(partial(simulate_cached, each),)) for each in lacking]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def simulate_cached(asked: dict[str, str]) -> Transaction:
    return once(f"simulated {asked}", lambda: simulate_installation(asked))


def simulate_installation(asked: dict[str, str]) -> Transaction:
    candidates = candidate_versions(set(asked))
    if any(candidates.get(name, "(none)") == "(none)" for name in asked):
        raise NotThereYet("AptSource")
    return run_simulation([f"{name}={version}" if version else name for name, version in asked.items()])


def candidate_versions(names: set[str]) -> dict[str, str]:
    """Return the candidate versions. Those of all listed sets are read at once, because apt is slow to start."""
    listed = {name for each in listed_sets() for name in parse_package_set(each)}
    return once("candidates", lambda: policy(listed)) if names <= listed else policy(names)


def policy(names: set[str]) -> dict[str, str]:
    """Return the version of each package that apt would install."""
    output = run_checked("apt-cache", "policy", "--", *sorted(names))
    return dict(re.findall(rf"^({NAME}):\n  Installed: .*\n  Candidate: (.*)$", output, re.MULTILINE))


def run_simulation(arguments: list[str]) -> Transaction:
    """Return the transaction that apt simulates.

    The output is parsed strictly: a line that is not understood could be a change that the plan does not show.
    """
    found = Transaction({}, {}, {})
    options = (*APT_GET, "--purge", "--simulate", "-oDebug::NoLocking=1")
    for line in run_checked("apt-get", *options, "install", *arguments).splitlines():
        if line.startswith(("Inst ", "Remv ", "Purg ")):
            parse_transaction_line(line, found)
    return found


def parse_transaction_line(line: str, found: Transaction) -> None:
    removed = re.fullmatch(rf"(?:Remv|Purg) ({NAME}) \[({VERSION})\](?: \[.*\])?", line)
    installed = re.fullmatch(rf"Inst ({NAME}) (?:\[({VERSION})\] )?\(({VERSION}) .*\)(?: \[.*\])?", line)
    if removed:
        found.removed[removed[1]] = removed[2]
    elif installed and installed[2]:
        found.changed[installed[1]] = [installed[2], installed[3]]
    elif installed:
        found.added[installed[1]] = installed[3]
    else:
        raise AgentFault("Winhost.NotUnderstood", "InvalidData", f"apt-get says what winhost cannot read: {line}")


# ---- records of what winhost installed


def read_ledger(wanted: str) -> Ledger | None:
    found = find_record("sets", wanted)
    return None if found is None else Ledger(**found)


def write_ledger(wanted: str, ledger: Ledger) -> None:
    write_record("sets", wanted, ledger._asdict())


def winhost_packages() -> set[str]:
    """Return the packages that winhost installed, as part of a set or singly (DebianPackage)."""
    found = {name for each in read_records("sets") for name in each["added"]}
    for file in Path(f"{STATE_FOLDER}/packages").glob("*.json"):
        found |= {file.name[: -len(".json")], *json.loads(read_file(str(file)))}
    return found


# ---- changes


@changes("AptPackages", "installed", "held", "to_add", "to_change", "to_change_foreign", "to_remove", "restart_due")
def change_apt_packages(key: Key, desired: State, how: State) -> None:
    """Change a set. For restart_due nothing is done here: the answer requests the restart."""
    wanted = key["packages"]
    if any(desired.get(name) for name in (*TRANSACTION_PROPERTIES, "restart_due")):
        raise bad_request("What apt has to do can only be wanted to be nothing.")
    if desired.get("installed") is False:
        undo_set(wanted, how)
        return
    if desired.get("held") is False:
        unhold_set(wanted)
    if desired.get("installed") is True or any(name in desired for name in TRANSACTION_PROPERTIES):
        install_set(wanted, how)
    if desired.get("held") is True:
        write_ledger(wanted, read_ledger(wanted) or initial_ledger(parse_package_set(wanted)))
        run_checked("apt-mark", "hold", *parse_package_set(wanted))


def install_set(wanted: str, how: State) -> None:
    asked, shown = parse_package_set(wanted), package_set(wanted)
    if isinstance(shown["to_add"], dict) and "unavailable" in shown["to_add"]:
        raise AgentFault("Winhost.NoSource", "ObjectNotFound", f"No source has all of {wanted}.", "apt-cache")
    await_packages(how)
    ONCE.clear()
    if shown["installed"] is False and package_set(wanted) != shown:
        raise wrong_state("What apt would do is no longer what it was before winhost waited; nothing was changed.")
    doing = simulate_installation(asked)
    check_transaction(doing, how)
    ledger = add_to_ledger(read_ledger(wanted) or initial_ledger(asked), doing)
    write_ledger(wanted, ledger)
    exact = {**asked, **{name: new for name, (_, new) in doing.changed.items()}, **doing.added}
    # These exact versions are installed, even if a source has newer ones by now.
    apt_get(how, "--purge", "install", *(f"{name}={each}" if each else name for name, each in sorted(exact.items())))
    ONCE.clear()
    mark_auto_installed(name for name in (*ledger.added, *ledger.by_itself) if name not in asked)
    check_result(doing)
    write_ledger(wanted, ledger._replace(open=False))


def check_transaction(doing: Transaction, how: State) -> None:
    refuse_gpu_driver_in_wsl({**doing.added, **doing.changed})
    ours = winhost_packages()
    foreign = ", ".join(sorted(set(doing.removed) - ours))
    if foreign:
        raise AgentFault("Winhost.WouldRemove", "ResourceExists", f"It would remove {foreign}.", "apt-get")
    changed = ", ".join(sorted(set(doing.changed) - ours))
    if changed and "packages" not in how.get("accept", ()):
        message = f"It would change {changed}, which winhost did not install, and nobody approved that."
        raise AgentFault("Winhost.ChangesForeign", "ResourceExists", message, "apt-get")


def initial_ledger(asked: dict[str, str]) -> Ledger:
    held = sorted(name for name in asked if name in packages() and packages()[name].held)
    return Ledger({}, {}, {}, held, sorted(asked.keys() & auto_installed()), False)


def auto_installed() -> set[str]:
    return set(run_checked("apt-mark", "showauto").split())


def mark_auto_installed(names: Iterable[str]) -> None:
    found = sorted({name for name in names if name in packages()})
    if found:
        run_checked("apt-mark", "auto", *found)


def add_to_ledger(ledger: Ledger, doing: Transaction) -> Ledger:
    """Add a transaction to the ledger before it runs. A package that is changed twice keeps its first
    version as the one to restore.
    """
    changed = {name: [ledger.changed.get(name, (old,))[0], new] for name, (old, new) in doing.changed.items()}
    foreign = {name: each for name, each in changed.items() if name not in ledger.added}
    added = {**ledger.added, **{name: new for name, (_, new) in changed.items() if name in ledger.added}}
    return ledger._replace(
        added={**added, **doing.added},
        changed={**ledger.changed, **foreign},
        removed={**ledger.removed, **doing.removed},
        by_itself=sorted({*ledger.by_itself, *(auto_installed() & {*foreign, *doing.removed})}),
        open=True,
    )


def check_result(doing: Transaction) -> None:
    """Raise AgentFault unless the installed versions are those of the simulation."""
    expected: dict[str, str | None] = {name: new for name, (_, new) in doing.changed.items()}
    expected.update(doing.added)
    expected.update(dict.fromkeys(doing.removed))
    now = {name: packages()[name].version if name in packages() else None for name in expected}
    differing = ", ".join(sorted(name for name in expected if now[name] != expected[name]))
    if differing:
        raise AgentFault("Winhost.NotAsSimulated", "InvalidResult", f"apt did something else with {differing}.")


def unhold_set(wanted: str) -> None:
    """Release the packages of the set, except those that were held before."""
    ledger = read_ledger(wanted)
    ours = [
        name for name in parse_package_set(wanted) if name in packages() and name not in (ledger.held if ledger else ())
    ]
    if ours:
        run_checked("apt-mark", "unhold", *ours)
        ONCE.clear()
    if ledger is not None and not (ledger.added or ledger.changed or ledger.removed):
        remove_record("sets", wanted)


def undo_set(wanted: str, how: State) -> None:
    ledger = read_ledger(wanted)
    if ledger is None or not (ledger.added or ledger.changed or ledger.removed):
        raise AgentFault("Winhost.NotOurs", "PermissionDenied", "winhost did not install these packages; they stay.")
    await_packages(how)
    unhold_set(wanted)
    # If this is interrupted from here on, undoing the set again completes it.
    write_ledger(wanted, ledger._replace(open=True))
    there = unpacked()
    going = [name for name in ledger.added if name in there]
    back = restorable_versions(ledger)
    arguments = [*(f"{name}-" for name in going), *(f"{name}={version}" for name, version in back.items())]
    if arguments:
        undo_transaction(arguments, going, back, how)
    mark_auto_installed(ledger.by_itself)
    remove_record("sets", wanted)


def unpacked() -> set[str]:
    """Return the packages that are unpacked, configured or not."""
    shown = run_checked("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Package}\n").splitlines()
    return {line[3:] for line in shown if line[1] not in "nc"}


def restorable_versions(ledger: Ledger) -> dict[str, str]:
    """Return the former versions that a source still has. Warn about the others."""
    before = {**ledger.removed, **{name: old for name, (old, _) in ledger.changed.items()}}
    back = {}
    for name, version in sorted(before.items()):
        found = packages().get(name)
        if found is not None and found.version == version:
            continue
        shown = run("apt-cache", "show", "--no-all-versions", f"{name}={version}").output
        if f"\nVersion: {version}\n" in shown:
            back[name] = version
        else:
            warn(f"{name} {version} was there before, and no source has it any more.")
    return back


def undo_transaction(arguments: list[str], going: list[str], back: dict[str, str], how: State) -> None:
    doing = run_simulation(arguments)
    others = (set(doing.removed) - set(going)) | ((set(doing.added) | set(doing.changed)) - set(back))
    if others:
        raise AgentFault(
            "Winhost.InUse", "ResourceBusy", f"It would take along {', '.join(sorted(others))}.", "apt-get"
        )
    apt_get(how, "--purge", "install", *arguments)
    ONCE.clear()
    check_result(doing)
