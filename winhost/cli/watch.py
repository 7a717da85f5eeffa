"""Progress of runs, on stderr: lines that stay, and on a terminal a live line per host with the time it takes."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from winhost.cli.output import print_line
from winhost.cli.show_plan import shown
from winhost.engine.hands import Event
from winhost.model.errors import visible
from winhost.model.plan import Step


@contextmanager
def watching(as_jsonl: bool) -> Iterator[Callable[[Event], None]]:
    """What to call with each event. Safe to call from several threads."""
    if as_jsonl:
        yield lambda event: print_line(_document(event))
    elif sys.stderr.isatty():
        with _live() as tell:
            yield tell
    else:
        yield Lines().tell


def _document(event: Event) -> dict[str, object]:
    step = event.step
    return {
        "event": event.kind,
        "host": event.host,
        "text": event.text,
        "step": step.id if step else None,
        "number": event.number,
        "total": event.total,
        "percent": event.percent,
    }


class Lines:
    """A line for each thing that is done, with the seconds it took."""

    def __init__(self, write: Callable[[str], None] = lambda text: click.echo(text, err=True)) -> None:
        self._write = write
        self._began: dict[str, float] = {}
        self._sent: dict[str, int] = {}
        self._lock = threading.Lock()

    def tell(self, event: Event) -> None:
        with self._lock:
            if event.kind in ("step", "restart"):
                self._began[event.host] = time.monotonic()
            if event.kind != "step" and self._is_news(event):
                self._write(self.line(event))

    def _is_news(self, event: Event) -> bool:
        """Of a file that is being sent a line for each tenth stays."""
        if event.percent is None:
            return True
        before = self._sent.get(event.host, 0)
        self._sent[event.host] = event.percent
        return event.percent // 10 > before // 10

    def line(self, event: Event) -> str:
        """What stays on the screen of an event."""
        count = f"[{event.number}/{event.total}] " if event.total else ""
        text = visible(event.text) + (f": {_changes(event.step)}" if event.kind == "done" and event.step else "")
        took = ""
        if event.kind == "done" and event.host in self._began:
            took = f" ({time.monotonic() - self._began[event.host]:.1f} s)"
        mark = {"done": "✓", "failed": "✗", "waiting": "…", "restart": "↻"}.get(event.kind, "·")
        return f"{event.host} {mark} {count}{text}{took}"


def _changes(step: Step) -> str:
    return ", ".join(f"{name} {shown(step.before[name])} → {shown(want)}" for name, want in step.want.items())


@contextmanager
def _live() -> Iterator[Callable[[Event], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

    console = Console(stderr=True, highlight=False)
    columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        lines = Lines(lambda text: progress.console.print(text, markup=False))
        tasks: dict[str, TaskID] = {}

        def tell(event: Event) -> None:
            if event.host not in tasks:
                tasks[event.host] = progress.add_task(event.host, total=None)
            task = tasks[event.host]
            now = f"{event.host} {visible(event.text)}"
            if event.total:
                done = event.number if event.kind == "done" else event.number - 1
                progress.update(task, description=now, completed=done, total=event.total)
            else:
                progress.update(task, description=now)
            lines.tell(event)

        yield tell
