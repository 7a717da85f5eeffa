"""Progress on stderr: permanent lines, and on a terminal also a live line for each host, with the elapsed time."""

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
from winhost.cli.tables import format_pair
from winhost.cli.terminal import is_dumb, wrap
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.model.errors import WinhostError, visible

if TYPE_CHECKING:
    from rich.live import Live

T = TypeVar("T")
W = TypeVar("W")

SILENCE_S = 1.0  # seconds that may pass without a word
SUMMARY_PERIOD_S = 10.0  # seconds between two lines on many hosts, where no live lines can be shown
REMINDER_PERIOD_S = 60.0  # seconds between two lines on what a host is waited for

STOP_HINT = "Ctrl-C stops; the run can then be resumed or rolled back."

_BEGINNINGS = frozenset({"at", "step", "restart"})  # kinds of events that begin an activity
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"


@dataclass
class Activity:
    """The present work on a host. count: `[3/10] `; reported: a line has shown it; awaited: what it waits for; since:
    its start, reminded: its last reminder, both by `time.monotonic`.
    """

    description: str
    count: str
    reported: bool
    awaited: str = ""
    since: float = field(default_factory=time.monotonic)
    reminded: float = field(default_factory=time.monotonic)

    @property
    def text(self) -> str:
        return self.count + visible(f"{self.description}: {self.awaited}" if self.awaited else self.description)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.since

    @property
    def reminder(self) -> str:
        """The activity and how long it has taken so far."""
        return f"{self.text}, for {self.seconds / 60:.0f} min so far."


class Watch:
    """Writes a line for each event of several threads; its own thread, the ticker, reports activities that take long.

    write: prints a line; read_only: hosts are only read, which leaves no lines on the screen; stop_hint: says what
    Ctrl-C does to a run; brief: completed steps are shown without their properties.
    """

    def __init__(
        self, write: Callable[[str], None], *, read_only: bool = False, stop_hint: str = STOP_HINT, brief: bool = False
    ) -> None:
        self.hosts = 0
        self._write = write
        self._read_only = read_only
        self._brief = brief
        self._stop_hint = "Ctrl-C stops." if read_only else stop_hint
        self._next_summary = time.monotonic() + SILENCE_S
        self._read_count = 0
        # Replaced as a whole and never changed, so that drawing needs no lock.
        self._activities: Mapping[str, Activity] = {}
        self._percent_sent: dict[str, int] = {}
        self._lock = threading.RLock()
        # A queue into which a signal handler may put a message at any time. None ends the ticker.
        self._messages: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ticker = threading.Thread(target=self._run_ticker, daemon=True)

    def __enter__(self) -> "Watch":
        self._ticker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._messages.put(None)
        self._ticker.join()

    def __call__(self, event: ProgressEvent) -> None:
        """Show an event. Can be called from several threads."""
        with self._lock:
            activity = self._activities.get(event.host)
            if event.kind in _BEGINNINGS or activity is None:
                reported = event.kind not in ("at", "step")
                self._activities = {**self._activities, event.host: Activity(event.text, _count(event), reported)}
            elif event.kind == "waiting":
                activity.awaited, activity.reported = event.text, True
            elif event.kind in ("preparing", "sending", "done"):
                activity.description, activity.awaited, activity.reported = event.text, "", True
            self.show(event)

    def rename_activity(self, host: str, description: str) -> None:
        """Change the description of the activity on a host. Its time continues, and no line is written."""
        with self._lock:
            if host in self._activities:
                self._activities[host].description = description

    def say(self, text: str) -> None:
        """Print a text for a signal handler, which cannot take a lock: the ticker prints it."""
        self._messages.put(text)

    @contextmanager
    def activity(self, host: str, description: str) -> Iterator[None]:
        """Show inside the block what is being done to a host."""
        self(ProgressEvent(host, "at", description))
        try:
            yield
        finally:
            with self._lock:
                self._activities = {name: each for name, each in self._activities.items() if name != host}

    @contextmanager
    def reading(self, host: str) -> Iterator[None]:
        """Show inside the block that a host is being read, and count it."""
        try:
            with self.activity(host, "reading"):
                yield
        finally:
            with self._lock:
                self._read_count += 1

    def results(self, results: Iterable[T]) -> Iterator[T]:
        """Yield results, and remove the live lines from the screen while the caller prints each of them."""
        for result in results:
            with self.paused():
                yield result

    def paused(self) -> AbstractContextManager[None]:
        """Remove the live lines from the screen inside the block. This class has none."""
        return nullcontext()

    def show(self, event: ProgressEvent) -> None:
        """Write the permanent line of an event. The beginning of an activity has none, and a transfer has one for each
        tenth of its size.
        """
        if event.kind in ("step", "at"):
            return
        if event.percent is not None:
            before = self._percent_sent.get(event.host, 0)
            self._percent_sent[event.host] = event.percent
            if event.percent // 10 <= before // 10:
                return
        self._write(self.format_line(event))

    def format_line(self, event: ProgressEvent) -> str:
        """Return the permanent line of an event."""
        text = visible(event.text)
        if event.kind == "done" and event.step and not self._brief:
            before, desired = event.step.before, event.step.desired
            changes = [f"{name} {' → '.join(format_pair(before[name], each))}" for name, each in desired.items()]
            # Hashes are shown only with -v, or if nothing else changes.
            plain_changes = changes if is_log_shown() else [each for each in changes if "…" not in each]
            text += f": {', '.join(plain_changes or changes)}"
        duration = f" ({self._activities[event.host].seconds:.1f} s)" if event.kind == "done" else ""
        mark = {"done": "✓", "failed": "✗", "waiting": "…", "restart": "↻"}.get(event.kind, "·")
        return f"{event.host} {mark} {_count(event)}{text}{duration}"

    def tick(self) -> None:
        """Report each activity that takes longer than a second, and remind of it each minute."""
        now = time.monotonic()
        for host, activity in self._activities.items():
            if not activity.reported and activity.seconds >= SILENCE_S:
                activity.reported = True
                self.report(host, activity)
            if now - activity.reminded >= REMINDER_PERIOD_S:
                activity.reminded = now
                self.remind(host, activity)
        if self._read_only and self._activities and now >= self._next_summary:
            self._next_summary = now + SUMMARY_PERIOD_S
            self.summarize()

    def show_message(self, text: str) -> None:
        """Print a message on a new line, because a terminal has shown `^C` on the present one."""
        click.echo(f"\n{text}", err=True)

    def report(self, host: str, activity: Activity) -> None:
        """Write what is being done to a host. Hosts that are only read get no line each, but the line of
        `summarize`.
        """
        if not self._read_only:
            self._write(f"{host} · {activity.text} …")

    def remind(self, host: str, activity: Activity) -> None:
        """Write again what winhost waits for, and how to stop it."""
        self._write(f"{host} … {activity.reminder} {self._stop_hint}")

    def summarize(self) -> None:
        """Write one line about the activities on all hosts."""
        texts = [f"{host} ({activity.text})" for host, activity in self._activities.items()]
        more = f" and {len(texts) - 3} more" if len(texts) > 3 else ""
        count = f"{self._read_count} of {self.hosts} read; " if self.hosts > 1 else ""
        self._write(f"{count}now: {', '.join(texts[:3])}{more}")

    def _run_ticker(self) -> None:
        while True:
            try:
                text = self._messages.get(timeout=SILENCE_S)
            except queue.Empty:
                with self._lock:
                    self.tick()
                continue
            if text is None:
                return
            with self._lock:
                self.show_message(text)


class JsonLines(Watch):
    """Prints a JSON line for each event, on stdout."""

    def __init__(self) -> None:
        from winhost.cli.jsonl import print_event  # loads the outcomes of runs, which most commands do not have

        super().__init__(lambda text: None)
        self._print = print_event

    def show(self, event: ProgressEvent) -> None:
        if event.kind != "at":
            self._print(event)

    def remind(self, host: str, activity: Activity) -> None:
        self._print(ProgressEvent(host, "waiting", activity.reminder))


class Screen(Watch):
    """Progress on a terminal: a live line for each host, below the permanent lines."""

    def __init__(self, *, read_only: bool, stop_hint: str, brief: bool = False) -> None:
        super().__init__(self._print_above, read_only=read_only, stop_hint=stop_hint, brief=brief)
        self._console: Console = Console(stderr=True, emoji=False, highlight=False)
        self._live: Live | None = None
        self._live_paused = False

    def __enter__(self) -> Watch:
        if not self._read_only:
            self._start()
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, traceback)
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

    def report(self, host: str, activity: Activity) -> None:
        """Do nothing: the live lines show it."""

    def summarize(self) -> None:
        """Do nothing: the live lines show it."""

    def show_message(self, text: str) -> None:
        """Print above the live lines."""
        self._print_above(text)

    def rows(self) -> Group:
        """Return the live lines. The time comes first, because a narrow terminal cuts off the ends."""
        rows = [f"  {self._read_count} of {self.hosts} read"] if self.hosts > 1 else []
        spinner = _SPINNER[int(time.monotonic() * 8) % len(_SPINNER)]
        for host, activity in self._activities.items():
            minutes, seconds = divmod(int(activity.seconds), 60)
            stop = " (Ctrl-C stops)" if activity.seconds >= SUMMARY_PERIOD_S else ""
            rows.append(f"{spinner} {minutes}:{seconds:02} {host} {activity.text}{stop}")
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
        """Stop drawing. The caller must not hold the lock, because this waits for the thread that draws."""
        with self._lock:
            live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _print_above(self, text: str) -> None:
        self._console.print(wrap(text, 2, sys.stderr), markup=False, soft_wrap=True)


def show_progress(
    as_jsonl: bool = False, *, read_only: bool = False, stop_hint: str = STOP_HINT, brief: bool = False
) -> Watch:
    """Return the watch for a run, or for reading hosts. There are no live lines if the log is shown on the screen."""
    if as_jsonl:
        return JsonLines()
    if sys.stderr.isatty() and not is_dumb() and not is_log_shown():
        return Screen(read_only=read_only, stop_hint=stop_hint, brief=brief)
    return Watch(lambda text: click.echo(text, err=True), read_only=read_only, stop_hint=stop_hint, brief=brief)


def ask_each(
    items: Sequence[W], ask: Callable[[W], T], name: Callable[[W], str], at_once: int
) -> "Iterator[tuple[W, T | WinhostError]]":
    """Ask several hosts at a time, and show which. Yield the answers in the order of the items."""
    from winhost.engine.many import run_streaming  # needed only here

    with show_progress(read_only=True) as watch:
        watch.hosts = len(items)

        def ask_one(item: W) -> T:
            with watch.reading(name(item)):
                return ask(item)

        for result in watch.results(run_streaming(items, ask_one, at_once=at_once, abandon_running=True)):
            yield result.item, result.error or result.required_value


def _count(event: ProgressEvent) -> str:
    return f"[{event.number}/{event.total}] " if event.total else ""
