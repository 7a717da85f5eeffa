"""What demos are told with: commands as a user types them, chapters, and claims that are checked."""

import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from winhost.cli import output
from winhost.cli import run as command_line
from winhost.cli.streams import PIPE_CLOSED
from winhost.core.dataclass import dataclass
from winhost.engine.store import Store

SCALE = 0.01  # real seconds per lab second
STOPPED = 130  # how a command ends after Ctrl-C


@dataclass(frozen=True)
class RealEndpoint:
    """A gateway on this computer before a real engine, which answers in place of the simulator's stand-in."""

    address: tuple[str, int]
    key: str


class DemoFailed(click.ClickException):
    """The story did not go as it should: a defect of winhost."""


class Demo:
    """Chapters, in order; each ends with a check of what it claims."""

    def __init__(self, folder: Path, engine: str, real: RealEndpoint | None = None) -> None:
        self.folder = folder
        self.engine = engine
        self.real = real
        self.plan = folder / "plan.json"

    def play(self) -> None:
        """All of it. Raises DemoFailed."""
        raise NotImplementedError

    def only_run(self) -> str:
        """The name of the run that this story has made."""

        (name,) = Store().runs()
        return name


def run(*arguments: str, expect: int = 0) -> None:
    """A command as a user types it, in this process."""
    click.secho(f"\n$ winhost {shlex.join(arguments)}", bold=True)
    code = command_line(list(arguments))
    if code in (STOPPED, PIPE_CLOSED):
        raise click.exceptions.Exit(code)
    if expect:
        say(f"(exit {code})")
    require(code == expect, f"winhost {arguments[0]} ended with {code}, not {expect}")


def chapter(title: str) -> None:
    click.secho(f"\n━━ {title} ━━", fg="cyan", bold=True)


def say(text: str) -> None:
    output.say(text, fg="cyan")


def require(holds: bool, what: str) -> None:
    if not holds:
        raise DemoFailed(what)


@contextmanager
def environment(**values: str) -> Iterator[None]:
    """Variables for a while."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name)
            else:
                os.environ[name] = value
