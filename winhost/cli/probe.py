"""winhost probe: try what the GPUs of a host's Linux can do."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import click

from winhost.cli.detect import written
from winhost.cli.envelope import show_results
from winhost.cli.foreign_errors import as_winhost_error
from winhost.cli.live_hosts import probe_live
from winhost.cli.named_hosts import hosts_named
from winhost.cli.outputs import Output
from winhost.cli.show_measured import show_measured
from winhost.cli.snapshots import Snapshot, watched, worst
from winhost.cli.watch import Watch
from winhost.core.dataclass import dataclass
from winhost.engine.many import stream
from winhost.model.errors import WinhostError
from winhost.model.facts import Facts
from winhost.model.measured import Measurement


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
    """Try what the GPUs of HOSTS can do."""
    if ("container" in also) != bool(image):
        raise click.UsageError("--also container and --image go together: name the image to start")
    codes = [0]

    def snapshots(watch: Watch) -> Iterator[Snapshot]:
        found = hosts_named(hosts, fleet_file)
        watch.hosts += len(found)
        each = partial(probe_live, also=also, image=image, watch=watch)
        for result in stream(found, each, at_once=at_once, leave=True, ours=as_winhost_error):
            yield Snapshot(result.item.name, result.value, result.error)

    def results() -> Iterator[tuple[str, Probed | WinhostError]]:
        for read in watched(snapshots):
            error = read.error or written(output.path, read, force)
            codes.append(worst([error]))
            yield read.host, error or Probed(read.host, read.known.measured[-1], read.known)

    show_results("probe", output.shape, results(), lambda found: show_measured(found.host, found.measured, output.path))
    return max(codes)
