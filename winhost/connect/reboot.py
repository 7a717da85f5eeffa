"""Restarting a host and waiting until it is really back."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winhost.connect.agent import Agent, Connector
from winhost.connect.logged import brief, log_retry, logged
from winhost.connect.patience import NOT_REACHED, Patience
from winhost.connect.wire_errors import AuthenticationFailed, RemoteError, SessionDropped, TimedOut, WireError

log = logging.getLogger(__name__)


class _NotYet(Exception):
    pass


# By system: the properties of a boot that is ready, their values, and what is said until then.
_READY: Mapping[str, Sequence[tuple[str, bool, str]]] = {
    "windows": (
        ("logon_ready", True, "up, logon not ready yet"),
        ("servicing", False, "up, Windows is finishing its changes"),
    ),
    "linux": (("ready", True, "up, still starting its services"),),
}


def ask(agent: Agent) -> None:
    """Ask for the restart. A wire that goes down with the host is success."""
    try:
        agent.restart()
    except (SessionDropped, TimedOut):
        return


def wait(
    connector: Connector, old_boot: str, patience: Patience, progress: Callable[[str], None] = lambda text: None
) -> tuple[Agent, str]:
    """Wait for another boot on which logon works and that is ready. Returns a fresh agent and its boot id.

    A refused logon is waited out too: services that check it start late. Raises WireError: NotBack.
    """
    end = time.monotonic() + patience.deadline

    def tell(attempt: Any) -> None:
        match attempt.outcome.exception():
            case _NotYet() as error:
                reason = str(error)
            case AuthenticationFailed():
                reason = "up, refuses the logon as yet"
            case RemoteError():
                reason = "up, cannot say yet how far it is"
            case _:
                reason = "no answer yet"
        log_retry(log, connector.host, reason, attempt)
        progress(reason)

    waiting = (*NOT_REACHED, AuthenticationFailed, RemoteError, _NotYet)
    try:
        with logged(log, connector.host, f"restart from boot {brief(old_boot)}") as more:
            agent, boot = patience.ask(lambda: _look(connector, old_boot, end), tell, waiting)
            more.append(f"now boot {brief(boot)}")
        return agent, boot
    except waiting as last:
        raise WireError(
            "NotBack",
            what=f"{connector.host} was not back {patience.deadline:.0f} s after its restart: {last}",
            meaning="The restart was requested, and the host may still be starting. Nothing else was done since. "
            "Look at its console; if it hangs, turn it off and on there or by its management controller.",
            hint="When it is back: winhost resume with the run's name (winhost runs lists them).",
            host=connector.host,
        ) from last


def _look(connector: Connector, old_boot: str, end: float) -> tuple[Agent, str]:
    """Open a session of another boot that is ready. Raises _NotYet and what `open` raises."""
    agent = connector.open()
    hurried = Agent(agent.wire, min(agent.call_timeout, max(0.0, end - time.monotonic())), system=agent.system)
    ready = _READY[agent.system]
    try:
        boot = hurried.boot()
        seen = (f"{name}={brief(boot.get(name))}" for name in ("boot_id", *(name for name, _, _ in ready)))
        log.debug("%s: %s", connector.host, ", ".join(seen))
        if boot.get("boot_id") == old_boot:
            # Ask again, in this session of the old boot: the wire may have gone before the first request arrived.
            ask(hurried)
            raise _NotYet("still shutting down")
        if not isinstance(boot.get("boot_id"), str):
            raise _NotYet("up, cannot say yet which boot it is")
        for name, expected, until in ready:
            if boot.get(name) is not expected:
                raise _NotYet(until)
    except BaseException:
        agent.close()
        raise
    return agent, str(boot["boot_id"])
