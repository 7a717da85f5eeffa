"""The Linux of the host that a word names, and what is served there: for the commands of `winhost serve`."""

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
from winhost.engine.verified import keep_verified
from winhost.model.errors import UsageError, WinhostError, did_you_mean, visible
from winhost.model.fleet import AnyHost
from winhost.model.served import UnitState, Version
from winhost.resources.registry import titled
from winhost.serving.deployed import PATH, Deployed, DeployedEngine, NotDeployed
from winhost.serving.serving_status import ServingStatus, serving_status


@dataclass(frozen=True)
class ServingTarget:
    """A target. host: its name in the fleet file; windows: the version of the Windows that it was reached through."""

    host: str
    session: ServingSession
    deployed: Deployed
    windows: Sequence[Version]

    def chosen(self, models: Sequence[str]) -> tuple[DeployedEngine, ...]:
        """Return the engines of these models, or all, in the order of their start. Raises UsageError: NoSuchModel."""
        known = [each.model for each in self.deployed.engines]
        for model in models:
            if model not in known:
                raise no_such_model(self.host, model, known)
        return tuple(each for each in self.deployed.engines if not models or each.model in models)

    @property
    def gateway(self) -> Mapping[str, Json]:
        """The gateway in the form that the program there takes."""
        planned = self.deployed.gateway
        return {"unit": planned.unit, "address": planned.address, "port": planned.port, "tls": planned.tls}

    def status(self, key: str | None = None, *, ready: bool = False) -> ServingStatus:
        """key: for the gateway's metrics; ready: ask for a completion of each model, too."""
        engines = self.deployed.engines
        units = [*(each.unit for each in engines), self.deployed.gateway.unit]
        sockets = [each.socket for each in engines]
        found = self.session.state(units, sockets, self.gateway, key, ready=ready, gpus=True)
        asks = self.deployed.gateway.yields and found.gateway is not None and found.gateway.health == 200
        yields = self.session.yields(self.gateway).code if asks else None
        status = serving_status(self.host, self.deployed, found, yields)
        return replace(status, versions=(*status.versions, *self.windows))

    def unit(self, name: str) -> UnitState:
        return self.session.state([name]).units[0]


@dataclass(frozen=True)
class WatchedTarget(ServingTarget):
    """A target that a command works on, and what shows its progress."""

    watch: Watch

    def at(self, doing: str) -> AbstractContextManager[None]:
        return self.watch.activity(self.host, doing)


def no_such_model(host: str, model: str, known: Sequence[str]) -> UsageError:
    return UsageError(
        "NoSuchModel",
        what=f"{host} has no model '{visible(model)}'{did_you_mean(model, known)}",
        hint=f"There are: {', '.join(known)}",
        host=host,
    )


@contextmanager
def reached(at: TargetOptions, *, reads: bool = False, stops: str = STOP_HINT) -> Iterator[WatchedTarget]:
    """Reach the one host that is named, and read what it serves. reads: nothing is changed there; stops: what Ctrl-C
    does otherwise.

    Raises UsageError (SeveralTargets, and as `resolve_hosts`), WinhostError (NothingServed, WrongServingFile).
    """
    with show_progress(read_only=reads, stop_hint=stops) as watch:
        hosts = resolve_hosts([at.target], at.fleet_file)
        if len(hosts) != 1:
            what = f"{visible(at.target)} names {len(hosts)} hosts: {', '.join(each.name for each in hosts)}"
            raise UsageError("SeveralTargets", what=what, hint="Name one.")
        (host,) = hosts
        watch.hosts = 1
        with ExitStack() as stack:
            with watch.activity(host.name, "reading what is served"):
                try:
                    target = stack.enter_context(served_by(host))
                except NotAvailable as lacking:
                    raise no_linux(host.name, lacking) from None
            yield WatchedTarget(**vars(target), watch=watch)


@contextmanager
def served_by(host: AnyHost) -> Iterator[ServingTarget]:
    """Raises WinhostError (NotAvailable, NothingServed, WrongServingFile)."""
    windows: list[Version] = []
    with closing(ServingSession(lambda: serving_wire(host, windows))) as session:
        yield ServingTarget(host.name, session, parse_deployed(host.name, session.deployed()), windows)


def remember_versions(host: AnyHost) -> None:
    """Remember the versions with which the endpoint was just found to answer. A run that is done does not fail if the
    endpoint says nothing now, or the state cannot be written.
    """
    with suppress(WinhostError, OSError), served_by(host) as served:
        keep_verified(host.name, served.status().versions)


def nothing_served(host: str, why: str) -> WinhostError:
    """The error for a reachable host on which nothing is served."""
    return WinhostError(
        "NothingServed", what=f"{host}: {why}", hint=f"Serve a model on it: winhost up --on {host}", host=host
    )


def no_linux(host: str, lacking: NotAvailable) -> WinhostError:
    """The error for a host whose Linux does not exist yet, or does not run."""
    return (
        lacking if lacking.hint else nothing_served(host, f"nothing is served: {titled(lacking.needs)} is not set up")
    )


def parse_deployed(host: str, text: str | None) -> Deployed:
    if text is None:
        raise nothing_served(host, f"nothing is installed that serves models: there is no {PATH}")
    try:
        return Deployed.parse(text)
    except NotDeployed as error:
        raise WinhostError(
            "WrongServingFile",
            what=f"{host}: {PATH} is not as winhost writes it: {visible(str(error))}",
            meaning="It was changed by hand or by another version of winhost.",
            hint=f"Plan again: winhost plan {host} --workload WORKLOAD",
            host=host,
        ) from None


def secret_key(reference: str | None, option: str = "--api-key") -> str | None:
    """Resolve a reference. Raises BadParameter, UsageError: SecretUnreadable."""
    secret = secret_reference(reference, f"'{option}'")
    return secret.resolve().reveal() if secret else None
