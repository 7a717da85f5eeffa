"""Restart a host and wait until it is ready in another boot."""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from winhost.connect.agent import Agent, Connector
from winhost.connect.logged import log_retry, logged, shorten
from winhost.connect.patience import CONNECTION_ERRORS, Patience
from winhost.connect.wire_errors import AuthenticationFailed, RemoteError, SessionDropped, TimedOut, WireError

log = logging.getLogger(__name__)


class _NotReady(Exception):
    pass


# By system: the properties of a boot that is ready, their values, and what is reported until then.
_READY: Mapping[str, Sequence[tuple[str, bool, str]]] = {
    "windows": (
        ("logon_ready", True, "up, logon not ready yet"),
        ("servicing", False, "up, Windows is finishing its changes"),
    ),
    "linux": (("ready", True, "up, still starting its services"),),
}


def request_restart(agent: Agent) -> None:
    """Request the restart. A connection that drops with the host is no error."""
    try:
        agent.restart()
    except (SessionDropped, TimedOut):
        return


def wait_for_restart(
    connector: Connector, old_boot: str, patience: Patience, progress: Callable[[str], None] = lambda text: None
) -> tuple[Agent, str]:
    """Wait for another boot that is ready and accepts the logon. Returns a new agent and the boot id. A refused logon
    is tried again, because services that check it start late. Raises WireError: NotBack.
    """
    end = time.monotonic() + patience.deadline

    def report_retry(attempt: Any) -> None:
        match attempt.outcome.exception():
            case _NotReady() as error:
                reason = str(error)
            case AuthenticationFailed():
                reason = "up, refuses the logon as yet"
            case RemoteError():
                reason = "up, cannot say yet how far it is"
            case _:
                reason = "no answer yet"
        log_retry(log, connector.host, reason, attempt)
        progress(reason)

    retried_errors = (*CONNECTION_ERRORS, AuthenticationFailed, RemoteError, _NotReady)
    try:
        with logged(log, connector.host, f"restart from boot {shorten(old_boot)}") as details:
            agent, boot = patience.retry(lambda: _open_new_boot(connector, old_boot, end), report_retry, retried_errors)
            details.append(f"now boot {shorten(boot)}")
        return agent, boot
    except retried_errors as last:
        raise WireError(
            "NotBack",
            what=f"{connector.host} was not back {patience.deadline:.0f} s after its restart: {last}",
            meaning="The restart was requested, and the host may still be starting. Nothing else was done since. "
            "Look at its console; if it hangs, turn it off and on there or by its management controller.",
            hint="When it is back: winhost resume with the run's name (winhost runs lists them).",
            host=connector.host,
        ) from last


def _open_new_boot(connector: Connector, old_boot: str, end: float) -> tuple[Agent, str]:
    """Open a session in another boot that is ready. Raises _NotReady, and as `open` does."""
    agent = connector.open()
    limited = Agent(agent.wire, min(agent.call_timeout, max(0.0, end - time.monotonic())), system=agent.system)
    ready = _READY[agent.system]
    try:
        boot = limited.boot()
        properties = (f"{name}={shorten(boot.get(name))}" for name in ("boot_id", *(name for name, _, _ in ready)))
        log.debug("%s: %s", connector.host, ", ".join(properties))
        if boot.get("boot_id") == old_boot:
            # Request it again in the old boot: the connection may have dropped before the first request arrived.
            request_restart(limited)
            raise _NotReady("still shutting down")
        if not isinstance(boot.get("boot_id"), str):
            raise _NotReady("up, cannot say yet which boot it is")
        for name, expected, reason in ready:
            if boot.get(name) is not expected:
                raise _NotReady(reason)
    except BaseException:
        agent.close()
        raise
    return agent, str(boot["boot_id"])
