"""Waiting for a system that is being installed: what the installer says is shown, and its host key decides."""

import threading
import time

import click

from winhost.autoinstall.install_progress import InstallEvent, InstallProgress
from winhost.connect.shown_key import shown_host_key

_PAUSE_S = 5.0


class Waiting:
    """minutes: how long at most."""

    def __init__(self, minutes: float) -> None:
        self._until = time.monotonic() + minutes * 60
        self._progress, self._lock = InstallProgress(), threading.Lock()

    def hear(self, event: InstallEvent) -> None:
        """Hear an event from the installer, in threads of the listener."""
        with self._lock:
            if self._progress.hear(event):
                click.echo(f"installer: {self._progress.failure or self._progress.phase}", err=True)

    @property
    def said(self) -> str:
        """The last words of the installer, for the end."""
        with self._lock:
            progress = self._progress
        if progress.failure:
            return f"The installer said: {progress.failure}"
        heard = f"got as far as {progress.phase}" if progress.heard else "was not heard of; did the machine start it?"
        return f"The installer {heard}"

    def until_it_shows(self, key: str, address: str, port: int = 22, pause: float = _PAUSE_S) -> bool:
        """Wait until the machine there shows this host key. Another key there is another system, for now."""
        while True:
            if shown_host_key(address, port) == key:
                return True
            if time.monotonic() + pause > self._until:
                return False
            time.sleep(pause)
