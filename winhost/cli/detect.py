"""winhost detect and winhost probe: read hosts, and try what the GPUs of their Linux can do."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.errors import os_errors
from winhost.cli.live_hosts import probe_live
from winhost.cli.named_hosts import hosts_named
from winhost.cli.options import Output
from winhost.cli.output import one_file, say, show_next, write_file
from winhost.cli.show_facts import facts_path, show_facts
from winhost.cli.snapshots import Snapshot, ask_hosts, read_hosts, watched
from winhost.cli.tables import table
from winhost.cli.watch import Watch
from winhost.core.dataclass import dataclass
from winhost.engine.store import Store
from winhost.engine.two_systems import RememberedWindows, runs_linux
from winhost.model.documents import write_document
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.model.measured import ManagedMemory, Measurement, ProbeAnswer
from winhost.model.units import size


@dataclass(frozen=True)
class Detected:
    """A host as it was read, by `detect` or from files by `facts import`."""

    host: str
    facts: Facts


def detect(hosts: tuple[str, ...], force: bool, fleet_file: Path | None, at_once: int, output: Output) -> int:
    _check_path(output.path, hosts, fleet_file)
    seen = list[str]()

    def results() -> Iterator[tuple[str, Detected | WinhostError]]:
        for read in watched(lambda watch: read_hosts(hosts, fleet_file, at_once, watch)):
            error = read.error or written(output.path, read, force)
            seen.extend([] if error else [read.host])
            yield read.host, error or Detected(read.host, read.known)

    code = show_results("detection", output.shape, results(), lambda found: _show_detected(found, output))
    if seen and output.shape in ("table", "wide") and output.path is None:
        show_next(("assess", *(seen if code else hosts)), fleet_file)
    return code


def _show_detected(found: Detected, output: Output) -> None:
    show_facts(found.facts, output.path, output.wide)
    if runs_linux(found.facts):
        since = RememberedWindows(Store(), found.host).read_at
        say(f"  Its Linux runs now. What is shown of Windows is what that said last: {since or 'when, is not known'}")


def _check_path(path: Path | None, hosts: tuple[str, ...], fleet_file: Path | None) -> None:
    """Raises UsageError (OneFile) for several hosts and an existing file."""
    if path and path.is_file() and len(hosts_named(hosts, fleet_file)) > 1:
        raise one_file(path)


def written(folder: Path | None, read: Snapshot, force: bool) -> WinhostError | None:
    """Write a host's facts into a folder, or over a facts file. Returns an error instead of raising it."""
    if folder is None:
        return None
    try:
        with os_errors():
            if not folder.is_file():
                folder.mkdir(parents=True, exist_ok=True)
            write_file(facts_path(folder, read.host), write_document(read.facts), "facts", force)
    except WinhostError as error:
        return error
    return None


@dataclass(frozen=True)
class Probed:
    """The measurements on a host, and its facts with them."""

    host: str
    measured: Measurement
    facts: Facts


def probe(
    hosts: tuple[str, ...],
    also: tuple[str, ...],
    image: str | None,
    force: bool,
    fleet_file: Path | None,
    at_once: int,
    output: Output,
) -> int:
    if ("container" in also) != bool(image):
        raise click.UsageError("--also container and --image go together: name the image to start")
    _check_path(output.path, hosts, fleet_file)

    def snapshots(watch: Watch) -> Iterator[Snapshot]:
        each = partial(probe_live, also=also, image=image, watch=watch)
        return ask_hosts(hosts, fleet_file, at_once, watch, each)

    def results() -> Iterator[tuple[str, Probed | WinhostError]]:
        for read in watched(snapshots):
            error = read.error or written(output.path, read, force)
            yield read.host, error or Probed(read.host, read.known.measured[-1], read.known)

    return show_results(
        "probe", output.shape, results(), lambda found: show_measured(found.host, found.measured, output.path)
    )


def show_measured(host: str, measured: Measurement, folder: Path | None) -> None:
    """Show a heading, a table of the parts, and where the facts were written."""
    found = measured.found
    where = host if measured.target == host else f"{host}/{measured.target}"
    say(f"{where}: driver {found.driver or 'unknown'}, kernel {found.kernel}", bold=True)
    table(("part", "outcome", "seconds", "found"), _rows(found))
    inside = found.container.answer if found.container else None
    if inside is not None:
        say("  In the container:")
        table(("part", "outcome", "seconds", "found"), _rows(inside))
    if folder is None:
        say("  Not saved: name a folder with -o.")
    else:
        path = facts_path(folder, host)
        say(f"  Written to {path}")
        show_next(("assess", str(path)))


def _rows(found: ProbeAnswer) -> list[tuple[str, ...]]:
    return [
        (
            each.part,
            each.outcome,
            f"{each.seconds:.1f}",
            each.why or (_FOUND[each.part](found) if each.part in _FOUND else ""),
        )
        for each in found.outcomes
    ]


def _driver(found: ProbeAnswer) -> str:
    gpus = ", ".join(f"{gpu.name} ({size(gpu.total)})" for gpu in found.gpus)
    return f"CUDA {found.cuda or 'unknown'}; {gpus}"


def _copies(found: ProbeAnswer) -> str:
    return "; ".join(
        f"GPU {each.gpu}: {_rate(each.pinned_up)} up and {_rate(each.pinned_down)} down pinned, "
        f"{_rate(each.pageable_up)} and {_rate(each.pageable_down)} pageable"
        for each in found.copies
    )


def _peers(found: ProbeAnswer) -> str:
    return "; ".join(
        f"{each.source} to {each.target}: {_link(each.access, each.rate, each.intact)}" for each in found.peers
    )


def _link(access: bool, rate: float | None, intact: bool | None) -> str:
    if not access:
        return "no access"
    return _rate(rate) + ("" if intact else ", and what arrives is wrong" if intact is False else ", not checked")


def _rate(rate: float | None) -> str:
    return "?" if rate is None else f"{rate:.1f} GB/s"


def _works(works: bool | None) -> str:
    return {True: "works", False: "what was shared is wrong", None: ""}[works]


def _managed(found: ProbeAnswer) -> str:
    if found.managed is None:
        return ""
    return f"{_works(found.managed.works)}; {_at_once(found.managed)}"


def _at_once(managed: ManagedMemory) -> str:
    if not managed.offered:
        return "the driver offers no use by GPU and processor at once"
    return {True: "used by GPU and processor at once", False: "wrong when used at once", None: "not tried at once"}[
        managed.concurrent
    ]


def _video(found: ProbeAnswer) -> str:
    video = found.video
    if video is None:
        return ""
    decodes = {True: "H.264 is decoded", False: "H.264 is not decoded as it was encoded", None: "nothing was decoded"}
    encodes = {True: ", and encoded", False: ", and not encoded", None: ""}[video.encodes]
    return f"{decodes[video.decodes]}{encodes}" + (f"; {video.why}" if video.why else "")


def _pinned(found: ProbeAnswer) -> str:
    if found.pinned is None:
        return ""
    return f"{size(found.pinned.bytes)} pinned" + (f", then {found.pinned.ended}" if found.pinned.ended else "")


def _checkpoint(found: ProbeAnswer) -> str:
    done = found.checkpoint
    if done is None:
        return ""
    data = "intact" if done.intact else "not intact"
    return f"{size(done.bytes)} suspended in {done.suspended} s, resumed in {done.resumed} s, {data}"


def _nccl(found: ProbeAnswer) -> str:
    if found.nccl is None:
        return ""
    rates = ", ".join(f"{size(each.bytes)} in {each.microseconds:.0f} µs" for each in found.nccl.rates)
    return f"{', '.join(found.nccl.transports) or 'no transport named'}: {rates}"


_FOUND: Mapping[str, Callable[[ProbeAnswer], str]] = {
    "driver": _driver,
    "shm": lambda found: f"{size(found.shm.free)} of {size(found.shm.total)} free" if found.shm else "",
    "copies": _copies,
    "peers": _peers,
    "ipc-legacy": lambda found: _works(found.ipc_legacy),
    "ipc-fd": lambda found: _works(found.ipc_fd),
    "managed": _managed,
    "video": _video,
    "pin-limit": _pinned,
    "checkpoint": _checkpoint,
    "nccl": _nccl,
    "container": lambda found: f"{found.container.image} by {found.container.runtime}" if found.container else "",
}
