# key {packages: text}   state {installed: bool | null, held: bool, to_add: [text], to_change: [text],
# to_change_foreign: [text], to_remove: [text], needed_by: [text], restart_due: bool}
from __future__ import annotations

import threading

from winhost.agent.linux_head import *

# A call without a key lists these, installed or not.
KNOWN_PACKAGE_SETS = (
    "containerd.io docker-ce docker-ce-cli",
    "criu",
    "docker.io",
    "nvidia-container-toolkit",
    "podman",
)
MODULES = "linux-modules-nvidia-"
BRANCH = "580-server"  # kept up for long, and the last one for GPUs before Turing
FABRIC_MANAGER = "nvidia-fabricmanager-580"  # of the same branch; it depends on exactly the driver's version
TO_DO = ("to_add", "to_change", "to_change_foreign", "to_remove")
NAME = r"[a-z0-9][a-z0-9+.-]*[a-z0-9+.](?::[a-z0-9]+)?"
VERSION = r"[A-Za-z0-9][A-Za-z0-9.+:~-]*"


class Transaction(NamedTuple):
    """One transaction of apt. added, removed: versions by name; changed: old and new versions."""

    added: dict[str, str]
    changed: dict[str, list[str]]
    removed: dict[str, str]


class Ledger(NamedTuple):
    """The changes that winhost made for a set, to undo them. held, by_itself: marks as they were found; open:
    unfinished.
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
        simulate_side_by_side()
    for wanted in [key["packages"]] if key else known_sets():
        yield {"packages": wanted}, package_set(wanted)


def known_sets() -> list[str]:
    return once("known sets", lambda: [*KNOWN_PACKAGE_SETS, *driver_sets()])


def driver_sets() -> list[str]:
    """NVIDIA's driver for the kernel that runs, with the modules that Ubuntu builds and signs for it, open and closed.

    By their metapackages, which take the modules of the next kernel along. For a board with NVSwitches those with its
    fabric manager come first: in one transaction, so that apt finds versions that fit.
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


def versions_asked(wanted: str) -> dict[str, str]:
    """The packages of a key, and the version that each shall have: none in particular where it is empty."""
    words = wanted.split(" ")
    if not all(re.fullmatch(f"{NAME}(={VERSION})?", word) for word in words) or words != sorted(set(words)):
        raise bad_request(f"{wanted!r} is not a sorted list of packages, as: docker.io nvidia-utils-580=580.1-1")
    asked = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    if len(asked) != len(words):
        raise bad_request(f"{wanted!r} has a package twice.")
    return asked


def package_set(wanted: str) -> State:
    asked, ledger = versions_asked(wanted), ledger_of(wanted)
    installed: bool | None = all(is_installed(*each) for each in asked.items())
    if ledger is not None and ledger.open:
        installed = None
    return {
        "installed": installed,
        "held": all(name in packages() and packages()[name].held for name in asked),
        **({name: [] for name in TO_DO} if installed else to_do(asked)),
        "needed_by": needed_by(ledger),
        "restart_due": value(lambda: wanted.startswith(MODULES) and driver_awaits_restart()),
    }


def is_installed(name: str, version: str) -> bool:
    found = packages().get(name)
    return found is not None and version in ("", found.version)


def to_do(asked: dict[str, str]) -> State:
    found = value(lambda: simulated_once(asked))
    if not isinstance(found, Transaction):
        return dict.fromkeys(TO_DO, found)
    ours = installed_by_us()
    changes_ = {name: f"{name} {old} -> {new}" for name, (old, new) in found.changed.items()}
    return {
        "to_add": sorted(map(" ".join, found.added.items())),
        "to_change": sorted(text for name, text in changes_.items() if name in ours),
        "to_change_foreign": sorted(text for name, text in changes_.items() if name not in ours),
        "to_remove": sorted(map(" ".join, found.removed.items())),
    }


def driver_awaits_restart() -> bool:
    """Another one runs, or none, than was put there since the start, or was taken away; one that was there by then and
    was not loaded will not be by another start.
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


def simulate_side_by_side() -> None:
    """Simulate all missing sets in parallel: apt takes half a second and more to begin, and a machine has several
    processors.
    """
    asked = [versions_asked(each) for each in known_sets()]
    lacking = [each for each in asked if not all(map(is_installed, each, each.values()))]
    if lacking:
        value(lambda: candidates_of(set().union(*lacking)))  # once, for all of them
    threads = [threading.Thread(target=value, args=(partial(simulated_once, each),)) for each in lacking]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def simulated_once(asked: dict[str, str]) -> Transaction:
    return once(f"simulated {asked}", lambda: simulated(asked))


def simulated(asked: dict[str, str]) -> Transaction:
    candidates = candidates_of(set(asked))
    if any(candidates.get(name, "(none)") == "(none)" for name in asked):
        raise NotThereYet("AptSource")
    return simulation([f"{name}={version}" if version else name for name, version in asked.items()])


def candidates_of(names: set[str]) -> dict[str, str]:
    """The candidates of all listed sets at once: apt needs most of its half second to begin."""
    listed = {name for each in known_sets() for name in versions_asked(each)}
    return once("candidates", lambda: policy(listed)) if names <= listed else policy(names)


def policy(names: set[str]) -> dict[str, str]:
    """The version of each that apt would install."""
    said = run_checked("apt-cache", "policy", "--", *sorted(names))
    return dict(re.findall(rf"^({NAME}):\n  Installed: .*\n  Candidate: (.*)$", said, re.MULTILINE))


def simulation(arguments: list[str]) -> Transaction:
    """Read strictly: a line that says more than we know would be something that nobody was shown."""
    found = Transaction({}, {}, {})
    options = (*APT_GET, "--purge", "--simulate", "-oDebug::NoLocking=1")
    for line in run_checked("apt-get", *options, "install", *arguments).splitlines():
        if line.startswith(("Inst ", "Remv ", "Purg ")):
            note_line(line, found)
    return found


def note_line(line: str, found: Transaction) -> None:
    going = re.fullmatch(rf"(?:Remv|Purg) ({NAME}) \[({VERSION})\](?: \[.*\])?", line)
    coming = re.fullmatch(rf"Inst ({NAME}) (?:\[({VERSION})\] )?\(({VERSION}) .*\)(?: \[.*\])?", line)
    if going:
        found.removed[going[1]] = going[2]
    elif coming and coming[2]:
        found.changed[coming[1]] = [coming[2], coming[3]]
    elif coming:
        found.added[coming[1]] = coming[3]
    else:
        raise AgentFault("Winhost.NotUnderstood", "InvalidData", f"apt-get says what winhost cannot read: {line}")


# ---- what is ours


def ledger_of(wanted: str) -> Ledger | None:
    found = find_record("sets", wanted)
    return None if found is None else Ledger(**found)


def keep_ledger(wanted: str, ledger: Ledger) -> None:
    write_record("sets", wanted, ledger._asdict())


def installed_by_us() -> set[str]:
    """The packages that winhost installed, by a set or one by one (DebianPackage)."""
    found = {name for each in read_records("sets") for name in each["added"]}
    for file in Path(f"{STATE_FOLDER}/packages").glob("*.json"):
        found |= {file.name[: -len(".json")], *json.loads(read_file(str(file)))}
    return found


# ---- changes


@changes("AptPackages", "installed", "held", "to_add", "to_change", "to_change_foreign", "to_remove", "restart_due")
def change_apt_packages(key: Key, desired: State, how: State) -> None:
    """restart_due takes no more than the restart that the answer asks for."""
    wanted = key["packages"]
    if any(desired.get(name) for name in (*TO_DO, "restart_due")):
        raise bad_request("What apt has to do can only be wanted to be nothing.")
    if desired.get("installed") is False:
        take_back(wanted, how)
        return
    if desired.get("held") is False:
        release_set(wanted)
    if desired.get("installed") is True or any(name in desired for name in TO_DO):
        install_set(wanted, how)
    if desired.get("held") is True:
        keep_ledger(wanted, ledger_of(wanted) or marks_of(versions_asked(wanted)))
        run_checked("apt-mark", "hold", *versions_asked(wanted))


def install_set(wanted: str, how: State) -> None:
    asked, shown = versions_asked(wanted), package_set(wanted)
    if isinstance(shown["to_add"], dict) and "unavailable" in shown["to_add"]:
        raise AgentFault("Winhost.NoSource", "ObjectNotFound", f"No source has all of {wanted}.", "apt-cache")
    await_packages(how)
    ONCE.clear()
    if shown["installed"] is False and package_set(wanted) != shown:
        raise wrong_state("What apt would do is no longer what it was before winhost waited; nothing was changed.")
    doing = simulated(asked)
    refuse_transaction(doing, how)
    ledger = ledger_with(ledger_of(wanted) or marks_of(asked), doing)
    keep_ledger(wanted, ledger)
    exact = {**asked, **{name: new for name, (_, new) in doing.changed.items()}, **doing.added}
    # In exactly these versions, whatever a source has got meanwhile.
    apt_get(how, "--purge", "install", *(f"{name}={each}" if each else name for name, each in sorted(exact.items())))
    ONCE.clear()
    mark_by_itself(name for name in (*ledger.added, *ledger.by_itself) if name not in asked)
    check_done(doing)
    keep_ledger(wanted, ledger._replace(open=False))


def refuse_transaction(doing: Transaction, how: State) -> None:
    refuse_gpu_driver_in_wsl({**doing.added, **doing.changed})
    ours = installed_by_us()
    foreign = ", ".join(sorted(set(doing.removed) - ours))
    if foreign:
        raise AgentFault("Winhost.WouldRemove", "ResourceExists", f"It would remove {foreign}.", "apt-get")
    changed = ", ".join(sorted(set(doing.changed) - ours))
    if changed and "packages" not in how.get("accept", ()):
        message = f"It would change {changed}, which winhost did not install, and nobody approved that."
        raise AgentFault("Winhost.ChangesForeign", "ResourceExists", message, "apt-get")


def marks_of(asked: dict[str, str]) -> Ledger:
    held = sorted(name for name in asked if name in packages() and packages()[name].held)
    return Ledger({}, {}, {}, held, sorted(asked.keys() & by_themselves()), False)


def by_themselves() -> set[str]:
    return set(run_checked("apt-mark", "showauto").split())


def mark_by_itself(names: Iterable[str]) -> None:
    found = sorted({name for name in names if name in packages()})
    if found:
        run_checked("apt-mark", "auto", *found)


def ledger_with(ledger: Ledger, doing: Transaction) -> Ledger:
    """Add a transaction to the ledger before it is done. A package that is changed twice goes back to its first
    version.
    """
    changed = {name: [ledger.changed.get(name, (old,))[0], new] for name, (old, new) in doing.changed.items()}
    of_others = {name: each for name, each in changed.items() if name not in ledger.added}
    added = {**ledger.added, **{name: new for name, (_, new) in changed.items() if name in ledger.added}}
    return ledger._replace(
        added={**added, **doing.added},
        changed={**ledger.changed, **of_others},
        removed={**ledger.removed, **doing.removed},
        by_itself=sorted({*ledger.by_itself, *(by_themselves() & {*of_others, *doing.removed})}),
        open=True,
    )


def check_done(doing: Transaction) -> None:
    """It is as the simulation said."""
    expected: dict[str, str | None] = {name: new for name, (_, new) in doing.changed.items()}
    expected.update(doing.added)
    expected.update(dict.fromkeys(doing.removed))
    now = {name: packages()[name].version if name in packages() else None for name in expected}
    differing = ", ".join(sorted(name for name in expected if now[name] != expected[name]))
    if differing:
        raise AgentFault("Winhost.NotAsSimulated", "InvalidResult", f"apt did something else with {differing}.")


def release_set(wanted: str) -> None:
    """Release the set; a package that was held before stays held."""
    ledger = ledger_of(wanted)
    ours = [
        name for name in versions_asked(wanted) if name in packages() and name not in (ledger.held if ledger else ())
    ]
    if ours:
        run_checked("apt-mark", "unhold", *ours)
        ONCE.clear()
    if ledger is not None and not (ledger.added or ledger.changed or ledger.removed):
        remove_record("sets", wanted)


def take_back(wanted: str, how: State) -> None:
    ledger = ledger_of(wanted)
    if ledger is None or not (ledger.added or ledger.changed or ledger.removed):
        raise AgentFault("Winhost.NotOurs", "PermissionDenied", "winhost did not install these packages; they stay.")
    await_packages(how)
    release_set(wanted)
    # What is broken off from here on is taken back by the same once more.
    keep_ledger(wanted, ledger._replace(open=True))
    there = unpacked()
    going = [name for name in ledger.added if name in there]
    back = versions_back(ledger)
    arguments = [*(f"{name}-" for name in going), *(f"{name}={version}" for name, version in back.items())]
    if arguments:
        undo_transaction(arguments, going, back, how)
    mark_by_itself(ledger.by_itself)
    remove_record("sets", wanted)


def unpacked() -> set[str]:
    """The packages that are unpacked, configured or not."""
    shown = run_checked("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}${Package}\n").splitlines()
    return {line[3:] for line in shown if line[1] not in "nc"}


def versions_back(ledger: Ledger) -> dict[str, str]:
    """Versions of before, as far as a source still has them."""
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
    doing = simulation(arguments)
    others = (set(doing.removed) - set(going)) | ((set(doing.added) | set(doing.changed)) - set(back))
    if others:
        raise AgentFault(
            "Winhost.InUse", "ResourceBusy", f"It would take along {', '.join(sorted(others))}.", "apt-get"
        )
    apt_get(how, "--purge", "install", *arguments)
    ONCE.clear()
    check_done(doing)
