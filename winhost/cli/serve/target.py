"""Connect to the Linux of a host, and read what is served there, for the commands of `winhost serve`."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace

from winhost.cli.errors import secret_reference
from winhost.cli.live_hosts import serving_wire
from winhost.cli.named_hosts import resolve_hosts
from winhost.cli.options import TargetOptions
from winhost.cli.watch import STOP_HINT, Watch, show_progress
from winhost.connect.wire_errors import NotAvailable
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.engine.serving_session import ServingSession
from winhost.engine.verified import save_verified
from winhost.model.errors import UsageError, WinhostError, did_you_mean, visible
from winhost.model.fleet import AnyHost
from winhost.model.served import UnitState, Version
from winhost.resources.registry import title_of
from winhost.serving.deployed import PATH, Deployed, DeployedEngine, NotDeployed
from winhost.serving.serving_status import ServingStatus, serving_status


@dataclass(frozen=True)
class ServingTarget:
    """A target. host: its name in the fleet file; windows: the version of the Windows that leads to it."""

    host: str
    session: ServingSession
    deployed: Deployed
    windows: Sequence[Version]

    def chosen(self, models: Sequence[str]) -> tuple[DeployedEngine, ...]:
        """Return the engines of these models, or all, in the order of their start. Raises UsageError: NoSuchModel."""
        known = [each.model for each in self.deployed.engines]
        for model in models:
            if model not in known:
                raise no_such_model_error(self.host, model, known)
        return tuple(each for each in self.deployed.engines if not models or each.model in models)

    @property
    def gateway(self) -> Mapping[str, Json]:
        """The gateway in the form that the agent on the target takes."""
        planned = self.deployed.gateway
        return {"unit": planned.unit, "address": planned.address, "port": planned.port, "tls": planned.tls}

    def status(self, key: str | None = None, *, ready: bool = False) -> ServingStatus:
        """Read the state of the units, engines, gateway and GPUs. key: a key for the gateway's metrics; ready: also ask
        each model for a completion.
        """
        engines = self.deployed.engines
        units = [*(each.unit for each in engines), self.deployed.gateway.unit]
        sockets = [each.socket for each in engines]
        state = self.session.state(units, sockets, self.gateway, key, ready=ready, gpus=True)
        can_yield = self.deployed.gateway.yields and state.gateway is not None and state.gateway.health == 200
        yields = self.session.yield_state(self.gateway).code if can_yield else None
        status = serving_status(self.host, self.deployed, state, yields)
        return replace(status, versions=(*status.versions, *self.windows))

    def unit(self, name: str) -> UnitState:
        return self.session.state([name]).units[0]


@dataclass(frozen=True)
class WatchedTarget(ServingTarget):
    """A target of a command, with the display of its progress."""

    watch: Watch

    def show_activity(self, doing: str) -> AbstractContextManager[None]:
        return self.watch.activity(self.host, doing)


def no_such_model_error(host: str, model: str, known: Sequence[str]) -> UsageError:
    return UsageError(
        "NoSuchModel",
        what=f"{host} has no model '{visible(model)}'{did_you_mean(model, known)}",
        hint=f"There are: {', '.join(known)}",
        host=host,
    )


@contextmanager
def connect_target(options: TargetOptions, *, reads: bool = False, stops: str = STOP_HINT) -> Iterator[WatchedTarget]:
    """Connect to the one host that is named, and read what it serves. reads: the command changes nothing there; stops:
    what Ctrl-C does if it changes something.

    Raises UsageError (SeveralTargets, and as `resolve_hosts`), WinhostError (NothingServed, WrongServingFile).
    """
    with show_progress(read_only=reads, stop_hint=stops) as watch:
        hosts = resolve_hosts([options.target], options.fleet_file)
        if len(hosts) != 1:
            what = f"{visible(options.target)} names {len(hosts)} hosts: {', '.join(each.name for each in hosts)}"
            raise UsageError("SeveralTargets", what=what, hint="Name one.")
        (host,) = hosts
        watch.hosts = 1
        with ExitStack() as stack:
            with watch.activity(host.name, "reading what is served"):
                try:
                    target = stack.enter_context(open_serving(host))
                except NotAvailable as error:
                    raise no_linux_error(host.name, error) from None
            yield WatchedTarget(**vars(target), watch=watch)


@contextmanager
def open_serving(host: AnyHost) -> Iterator[ServingTarget]:
    """Connect to the Linux of a host, and read what it serves. Raises WinhostError (NotAvailable, NothingServed,
    WrongServingFile).
    """
    windows: list[Version] = []
    with closing(ServingSession(lambda: serving_wire(host, windows))) as session:
        yield ServingTarget(host.name, session, parse_deployed(host.name, session.deployed()), windows)


def save_verified_versions(host: AnyHost) -> None:
    """Save the versions with which the endpoint has just answered. Ignores errors: they must not fail a run that is
    done.
    """
    with suppress(WinhostError, OSError), open_serving(host) as target:
        save_verified(host.name, target.status().versions)


def nothing_served_error(host: str, why: str) -> WinhostError:
    """Make the error for a reachable host on which nothing is served."""
    return WinhostError(
        "NothingServed", what=f"{host}: {why}", hint=f"Serve a model on it: winhost up --on {host}", host=host
    )


def no_linux_error(host: str, error: NotAvailable) -> WinhostError:
    """Make the error for a host whose Linux does not exist yet, or does not run."""
    return (
        error if error.hint else nothing_served_error(host, f"nothing is served: {title_of(error.needs)} is not set up")
    )


def parse_deployed(host: str, text: str | None) -> Deployed:
    if text is None:
        raise nothing_served_error(host, f"nothing is installed that serves models: there is no {PATH}")
    try:
        return Deployed.parse(text)
    except NotDeployed as error:
        raise WinhostError(
            "WrongServingFile",
            what=f"{host}: winhost cannot read {PATH}: {visible(str(error))}",
            meaning="It was changed by hand, or by another version of winhost.",
            hint=f"Plan again: winhost plan {host} --workload WORKLOAD",
            host=host,
        ) from None


def resolve_key(reference: str | None, option: str = "--api-key") -> str | None:
    """Resolve the reference of an option. Raises BadParameter, UsageError: SecretUnreadable."""
    secret = secret_reference(reference, f"'{option}'")
    return secret.resolve().reveal() if secret else None
