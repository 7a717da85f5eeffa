"""Progress on stderr: lines that stay, and on a terminal a live line for each host, with the time."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import field
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar

import click
from rich.console import Console, Group
from rich.text import Text

from winhost.cli.log_lines import is_log_shown
from winhost.cli.tables import format_two
from winhost.cli.terminal import is_dumb, wrapped
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.model.errors import WinhostError, visible

if TYPE_CHECKING:
    from rich.live import Live

T = TypeVar("T")
W = TypeVar("W")

SILENT = 1.0  # seconds that may pass without a word
SUMMED_UP = 10.0  # seconds between two lines on many hosts, where no live lines can be shown
REMINDED = 60.0  # seconds between two lines on what a host is waited for

STOPS = "Ctrl-C stops; the run can then be resumed or rolled back."

_BEGIN = frozenset({"at", "step", "restart"})  # events from which the time counts
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass
class Doing:
    """The present work on a host. waits: what it waits for; count: `[3/10] `; reported: all of it was told; since,
    reminded: by `time.monotonic`.
    """

    what: str
    count: str
    reported: bool
    waits: str = ""
    since: float = field(default_factory=time.monotonic)
    reminded: float = field(default_factory=time.monotonic)

    @property
    def text(self) -> str:
        return self.count + visible(f"{self.what}: {self.waits}" if self.waits else self.what)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def reminder(self) -> str:
        """Say what is waited for, and since when."""
        return f"{self.text}, for {self.seconds / 60:.0f} min so far."


class Watch:
    """Writes a line for each event, from several threads; its own thread tells what takes long.

    reads: hosts are only read, and nothing of that stays on the screen; stops: what Ctrl-C does otherwise; brief: done
    steps are shown without their properties.
    """

    def __init__(
        self, write: Callable[[str], None], *, reads: bool = False, stops: str = STOPS, brief: bool = False
    ) -> None:
        self.hosts = 0
        self._write = write
        self._reads = reads
        self._brief = brief
        self._to_stop = "Ctrl-C stops." if reads else stops
        self._sum_up_at = time.monotonic() + SILENT
        self._read = 0
        # Replaced and never changed, so that drawing it needs no lock.
        self._at: Mapping[str, Doing] = {}
        self._sent: dict[str, int] = {}
        self._lock = threading.RLock()
        # One that a signal's handler may put into, whatever it has interrupted. None: it is over.
        self._asides: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ticker = threading.Thread(target=self._tick_on, daemon=True)

    def __enter__(self) -> "Watch":
        self._ticker.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._asides.put(None)
        self._ticker.join()

    def __call__(self, event: ProgressEvent) -> None:
        """Safe to call from several threads."""
        with self._lock:
            before = self._at.get(event.host)
            if event.kind in _BEGIN or before is None:
                reported = event.kind not in ("at", "step")
                self._at = {**self._at, event.host: Doing(event.text, _count(event), reported)}
            elif event.kind == "waiting":
                before.waits, before.reported = event.text, True
            elif event.kind in ("preparing", "sending", "done"):
                before.what, before.waits, before.reported = event.text, "", True
            self.show(event)

    def now(self, host: str, doing: str) -> None:
        """Rename the present work on a host. Its time goes on, and no line stays of it."""
        with self._lock:
            if host in self._at:
                self._at[host].what = doing

    def say(self, text: str) -> None:
        """Print a text from a signal's handler, which can take no lock: the ticking thread prints it."""
        self._asides.put(text)

    @contextmanager
    def at(self, host: str, doing: str) -> Iterator[None]:
        """Show what is being done to a host inside the block."""
        self(ProgressEvent(host, "at", doing))
        try:
            yield
        finally:
            with self._lock:
                self._at = {name: doing for name, doing in self._at.items() if name != host}

    @contextmanager
    def reading(self, host: str) -> Iterator[None]:
        """Show inside the block that a host is being read, and count it."""
        try:
            with self.at(host, "reading"):
                yield
        finally:
            with self._lock:
                self._read += 1

    def results(self, results: Iterable[T]) -> Iterator[T]:
        """Hand results on, and take live lines off the screen while the caller prints."""
        for result in results:
            with self.paused():
                yield result

    def paused(self) -> AbstractContextManager[None]:
        """Take live lines off the screen; here there are none."""
        return nullcontext()

    def show(self, event: ProgressEvent) -> None:
        """Write what stays of an event. A file gets a line for each tenth; a beginning is told when it is done."""
        if event.kind in ("step", "at"):
            return
        if event.percent is not None:
            before = self._sent.get(event.host, 0)
            self._sent[event.host] = event.percent
            if event.percent // 10 <= before // 10:
                return
        self._write(self.line(event))

    def line(self, event: ProgressEvent) -> str:
        """Return the line that stays of an event."""
        text = visible(event.text)
        if event.kind == "done" and event.step and not self._brief:
            before, desired = event.step.before, event.step.desired
            changes = [f"{name} {' → '.join(format_two(before[name], each))}" for name, each in desired.items()]
            # Hashes are shown only with -v, or if nothing else changes.
            plain = changes if is_log_shown() else [each for each in changes if "…" not in each]
            text += f": {', '.join(plain or changes)}"
        took = f" ({self._at[event.host].seconds:.1f} s)" if event.kind == "done" else ""
        mark = {"done": "✓", "failed": "✗", "waiting": "…", "restart": "↻"}.get(event.kind, "·")
        return f"{event.host} {mark} {_count(event)}{text}{took}"

    def tick(self) -> None:
        """Tell once what takes longer than a second, and then remind of it each minute."""
        now = time.monotonic()
        for host, doing in self._at.items():
            if not doing.reported and doing.seconds >= SILENT:
                doing.reported = True
                self.report(host, doing)
            if now - doing.reminded >= REMINDED:
                doing.reminded = now
                self.remind(host, doing)
        if self._reads and self._at and now >= self._sum_up_at:
            self._sum_up_at = now + SUMMED_UP
            self.sum_up()

    def aside(self, text: str) -> None:
        """Print beside the events. A terminal has shown `^C` in the same line."""
        click.echo(f"\n{text}", err=True)

    def report(self, host: str, doing: Doing) -> None:
        """Tell what is being done to a host. For many hosts that are read, a line each would be too much."""
        if not self._reads:
            self._write(f"{host} · {doing.text} …")

    def remind(self, host: str, doing: Doing) -> None:
        """Tell again what winhost waits for, and how to stop."""
        self._write(f"{host} … {doing.reminder} {self._to_stop}")

    def sum_up(self) -> None:
        """Tell in one line how far many hosts are."""
        at = [f"{host} ({doing.text})" for host, doing in self._at.items()]
        more = f" and {len(at) - 3} more" if len(at) > 3 else ""
        count = f"{self._read} of {self.hosts} read; " if self.hosts > 1 else ""
        self._write(f"{count}now: {', '.join(at[:3])}{more}")

    def _tick_on(self) -> None:
        while True:
            try:
                text = self._asides.get(timeout=SILENT)
            except queue.Empty:
                with self._lock:
                    self.tick()
                continue
            if text is None:
                return
            with self._lock:
                self.aside(text)


class JsonLines(Watch):
    """A JSON line per event, on stdout."""

    def __init__(self) -> None:
        from winhost.cli.jsonl import print_event  # with the outcomes of runs, which most commands do not have

        super().__init__(lambda text: None)
        self._print = print_event

    def show(self, event: ProgressEvent) -> None:
        if event.kind != "at":
            self._print(event)

    def remind(self, host: str, doing: Doing) -> None:
        self._print(ProgressEvent(host, "waiting", doing.reminder))


class Screen(Watch):
    """Progress on a terminal: a line per host that moves, and above them those that stay."""

    def __init__(self, *, reads: bool, stops: str, brief: bool = False) -> None:
        super().__init__(self._above, reads=reads, stops=stops, brief=brief)
        self._console: Console = Console(stderr=True, emoji=False, highlight=False)
        self._live: Live | None = None
        self._live_paused = False

    def __enter__(self) -> Watch:
        if not self._reads:
            self._start()
        return super().__enter__()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        super().__exit__(kind, error, at)
        self._stop()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._lock:
            self._live_paused = True
        self._stop()
        try:
            yield
        finally:
            with self._lock:
                self._live_paused = False

    def tick(self) -> None:
        if self._live is None and not self._live_paused:
            self._start()
        super().tick()

    def report(self, host: str, doing: Doing) -> None:
        """Do nothing: the live lines show it."""

    def sum_up(self) -> None:
        """Do nothing: the live lines show it."""

    def aside(self, text: str) -> None:
        """Print above the live lines."""
        self._above(text)

    def rows(self) -> Group:
        """Return the live lines, with the time first: a narrow terminal cuts off their ends."""
        rows = [f"  {self._read} of {self.hosts} read"] if self.hosts > 1 else []
        spinner = _SPINNER[int(time.monotonic() * 8) % len(_SPINNER)]
        for host, doing in self._at.items():
            minutes, seconds = divmod(int(doing.seconds), 60)
            stop = " (Ctrl-C stops)" if doing.seconds >= SUMMED_UP else ""
            rows.append(f"{spinner} {minutes}:{seconds:02} {host} {doing.text}{stop}")
        return Group(*(Text(row, no_wrap=True, overflow="ellipsis") for row in rows))

    def _start(self) -> None:
        from rich.live import Live  # with its thread and spinners, which only a terminal shows

        self._live = Live(
            get_renderable=self.rows,
            console=self._console,
            refresh_per_second=8,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._live.start()

    def _stop(self) -> None:
        """Stop drawing. The lock must be free, since this waits for the thread that draws."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _above(self, text: str) -> None:
        self._console.print(wrapped(text, 2, sys.stderr), markup=False, soft_wrap=True)


def watching(as_jsonl: bool = False, *, reads: bool = False, stops: str = STOPS, brief: bool = False) -> Watch:
    """Return the callback for events of runs, or of reading many hosts. A log on the screen allows no live lines."""
    if as_jsonl:
        return JsonLines()
    if sys.stderr.isatty() and not is_dumb() and not is_log_shown():
        return Screen(reads=reads, stops=stops, brief=brief)
    return Watch(lambda text: click.echo(text, err=True), reads=reads, stops=stops, brief=brief)


def asked_each(
    items: Sequence[W], ask: Callable[[W], T], name: Callable[[W], str], at_once: int
) -> "Iterator[tuple[W, T | WinhostError]]":
    """Ask several hosts at a time, showing which. Answers come in the order of hosts."""
    from winhost.engine.many import run_streaming  # only hosts need it

    with watching(reads=True) as watch:
        watch.hosts = len(items)

        def one(item: W) -> T:
            with watch.reading(name(item)):
                return ask(item)

        for done in watch.results(run_streaming(items, one, at_once=at_once, abandon_running=True)):
            yield done.item, done.error or done.required_value


def _count(event: ProgressEvent) -> str:
    return f"[{event.number}/{event.total}] " if event.total else ""
