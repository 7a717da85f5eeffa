"""Show the results of a probe: a line per part, with the numbers."""

from collections.abc import Callable, Mapping
from pathlib import Path

from winhost.cli.output import say
from winhost.cli.tables import table
from winhost.model.measured import ManagedMemory, Measurement, ProbeAnswer
from winhost.model.units import size


def show_measured(host: str, measured: Measurement, folder: Path | None) -> None:
    """A head, a table of the parts, and where it was written."""
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
        path = folder / f"{host}.json"
        say(f"  Written to {path}. Next: winhost assess {path}")


def _rows(found: ProbeAnswer) -> list[tuple[str, ...]]:
    return [
        (each.part, each.outcome, f"{each.seconds:.1f}", each.why or _FOUND.get(each.part, _nothing)(found))
        for each in found.outcomes
    ]


def _nothing(found: ProbeAnswer) -> str:
    return ""


def _driver(found: ProbeAnswer) -> str:
    gpus = ", ".join(f"{gpu.name} ({size(gpu.total)})" for gpu in found.gpus)
    return f"CUDA {found.cuda or 'unknown'}; {gpus}"


def _shm(found: ProbeAnswer) -> str:
    return f"{size(found.shm.free)} of {size(found.shm.total)} free" if found.shm else ""


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


def _container(found: ProbeAnswer) -> str:
    return f"{found.container.image} by {found.container.runtime}" if found.container else ""


_FOUND: Mapping[str, Callable[[ProbeAnswer], str]] = {
    "driver": _driver,
    "shm": _shm,
    "copies": _copies,
    "peers": _peers,
    "ipc-legacy": lambda found: _works(found.ipc_legacy),
    "ipc-fd": lambda found: _works(found.ipc_fd),
    "managed": _managed,
    "video": _video,
    "pin-limit": _pinned,
    "checkpoint": _checkpoint,
    "nccl": _nccl,
    "container": _container,
}
