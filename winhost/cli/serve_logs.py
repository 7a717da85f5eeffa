"""winhost serve logs: what engines and gateway wrote to the journal of a target."""

import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import click

from winhost.cli.envelope import show_results
from winhost.cli.outputs import Output
from winhost.cli.serving_target import ServingTarget, serving_target
from winhost.cli.watch import watching
from winhost.core.dataclass import dataclass
from winhost.model.errors import WinhostError, visible
from winhost.model.masking import masked
from winhost.model.served import UnitLine
from winhost.symptoms.scan import plain

_PAUSE_S = 1.0
_STOPPED = 130


@dataclass(frozen=True)
class ServingLine:
    """A line of the journal, without secrets. source: a model, or `gateway`; time: ISO 8601 in UTC."""

    host: str
    source: str
    unit: str
    time: str
    text: str


def logs(
    target: str,
    models: tuple[str, ...],
    gateway: bool,
    follow: bool,
    lines: int,
    fleet_file: Path | None,
    output: Output,
) -> int:
    """Show what engines and gateway of TARGET wrote, without secrets."""
    codes = [0]
    with watching(reads=True) as watch, serving_target(target, fleet_file, watch) as served:
        sources = _sources(served, models, gateway)

        def results() -> Iterator[tuple[str, ServingLine | WinhostError]]:
            try:
                for each in _lines(served, list(sources), lines, follow):
                    time_ = datetime.fromtimestamp(each.at, UTC).isoformat(timespec="seconds")
                    said = masked(plain(each.text))
                    yield served.host, ServingLine(served.host, sources[each.unit], each.unit, time_, said)
            except KeyboardInterrupt:  # the document is ended, and nothing is left to be undone
                codes.append(_STOPPED)

        width = max(map(len, sources.values()))
        with watch.paused():
            show_results("serving-log", output.shape, results(), lambda line: _show(line, width))
    return max(codes)


def _sources(served: ServingTarget, models: Sequence[str], gateway: bool) -> dict[str, str]:
    """The titles of units: of all, or of those that were named."""
    engines = served.chosen(models) if models or not gateway else ()
    found = {each.unit: each.model for each in engines}
    return found if models and not gateway else {**found, served.deployed.gateway.unit: "gateway"}


def _lines(served: ServingTarget, units: Sequence[str], lines: int, follow: bool) -> Iterator[UnitLine]:
    page = served.session.log(units, lines=lines)
    while True:
        yield from page.lines
        cursor = page.cursor
        if not page.more:
            if not follow:
                return
            time.sleep(_PAUSE_S)
        page = served.session.log(units, lines=lines, cursor=cursor)


def _show(line: ServingLine, width: int) -> None:
    click.echo(f"{line.time[:19]} {line.source:{width}} {visible(line.text)}")
