"""winhost serve: how models are served on a target."""

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

import click
import yaml

from winhost.cli.envelope import show_results
from winhost.cli.foreign_errors import Faults
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.outputs import Output
from winhost.cli.show_profile import show_serving
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.hub.hub_repository import model_files
from winhost.model.path import path_of, variant_name
from winhost.model.reason import Verdict
from winhost.model.secrets import SecretRef
from winhost.model.workloadfile import load_workload
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.serving.choice import Served, Serving, serving
from winhost.serving.command import command, program_command
from winhost.serving.compose_words import readable_yaml
from winhost.serving.gateway_entries import gateway_entries, key_line, metrics_key_line, yield_key_line, yields
from winhost.serving.profile import base_of
from winhost.serving.turn_entries import SharingModel, turn_settings
from winhost.serving.vllm_options import seen_versions


@dataclass(frozen=True)
class Commanded(Served):
    """A model with the command that serves it."""

    command: str


@dataclass(frozen=True)
class Profiled:
    """The models of a workload as they are served on a host: see Serving."""

    host: str
    origin: str
    path: str
    variant: str | None
    chosen: str
    verdict: Verdict
    vllm: str | None
    models: tuple[Commanded, ...]

    @classmethod
    def of(cls, found: Serving, suspended: Collection[str] = ()) -> "Profiled":
        """Add the command of each model. suspended: those whose process leaves its GPU."""

        def words(served: Served) -> list[str]:
            alone = served.served_name in suspended
            return program_command(served) if alone else command(served, found.vllm)

        models = tuple(Commanded(**vars(served), command=" ".join(words(served))) for served in found.models)
        variant = path_of(found.variant), variant_name(found.variant)
        return cls(found.host, found.origin, *variant, found.chosen, found.verdict, found.vllm, models)


def profile(
    facts: Path | None,
    facts_file: Path | None,
    workload_file: Path,
    named: str | None,
    path: str | None,
    read_speed: int,
    everything: bool,
    output: Output,
) -> int:
    """Print the settings of vLLM for each model, ready to copy, with the reason of each line."""
    faults = Faults()
    known = faults.of(lambda: _named_target(facts, facts_file))
    workload = faults.of(lambda: load_workload(workload_file))
    if path and known and known.is_linux:
        faults.add(f"--path {path} is for a Windows host, and this is a Linux already: leave it out")
    if path and named and base_of(named) not in (path, "bare-metal"):
        faults.add(f"--path {path} contradicts --profile {named}: leave one out")
    faults.refuse()
    assert known is not None
    assert workload is not None
    if "vllm" not in workload.versions:  # as a plan does, whose image this is
        workload = replace(workload, versions={**workload.versions, "vllm": seen_versions()[-1]})
    found = serving(known, workload, named, read_speed, path)
    suspended = {model.served_name for model in workload.models if model.suspend}
    show_results(
        "profile",
        output.shape,
        [(found.host, Profiled.of(found, suspended))],
        lambda _: show_serving(found, everything, suspended),
    )
    return 0


def _named_target(facts: Path | None, facts_file: Path | None) -> HostFacts:
    """Raises click's UsageError, UsageError (FileFaults)."""
    file = named_facts(facts, facts_file, "--target")
    if file is None:
        raise click.UsageError("no facts are named; winhost detect HOST -o FOLDER writes them")
    return HostFacts(read_facts(file))


def files(model: str, revision: str, folder: str, token: str | None, hub: str) -> int:
    """Print the files of a model at one revision, as an entry of a playbook."""
    try:
        if token is not None:
            SecretRef.parse(token)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="'--token'") from None
    entry = {
        "resource": "ModelFiles",
        "title": f"Files of {model}",
        "key": {"folder": folder},
        "desired": model_files(model, revision, token, hub.rstrip("/")),
        "why": "The model at one revision, each file by its hash.",
    }
    click.echo(yaml.safe_dump([entry], sort_keys=False, width=1000), nl=False)
    return 0


def gateway(
    models: tuple[str, ...],
    keys: tuple[str, ...],
    metrics_keys: tuple[str, ...],
    yield_keys: tuple[str, ...],
    listen: str,
    certificate: str | None,
    certificate_key: str | None,
    plain_http: bool,
    shares: tuple[str, ...],
    vllm: str | None,
    no_sleep: bool,
    suspend: bool,
    idle: float | None,
    trusted_proxies: tuple[str, ...],
    proxy_protocol: bool,
) -> int:
    """Print the gateway before vLLM as entries of a playbook."""
    if (certificate is None) is not (certificate_key is None):
        raise click.UsageError("--certificate and --certificate-key go together")
    tls = (certificate, certificate_key) if certificate and certificate_key else None
    settings: dict[str, Json] = {
        "listen": _place(listen),
        "models": [{"name": name, "engine": _place(engine)} for name, engine in map(_pair, models)],
    }
    if plain_http:
        settings["plain_http_beyond_this_machine"] = True
    if trusted_proxies:
        settings["trusted_proxies"] = [*trusted_proxies]
    if proxy_protocol:
        settings["proxy_protocol"] = True
    if yield_keys:
        settings["yields"] = yields()
    try:
        _take_turns(settings, [_sharing(each, vllm, not no_sleep, suspend) for each in shares], idle)
        lines = [key_line(*_pair(each)) for each in keys] + [metrics_key_line(*_pair(each)) for each in metrics_keys]
        lines += [yield_key_line(*_pair(each)) for each in yield_keys]
        entries = gateway_entries(settings, lines, tls)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    click.echo(readable_yaml(entries), nl=False)
    return 0


def _sharing(text: str, vllm: str | None, sleeps: bool, suspend: bool) -> SharingModel:
    name, gpus = _pair(text)
    if not all(gpu.isdecimal() for gpu in gpus.split(",")):
        raise click.UsageError(f"{text!r} is not NAME=GPUS with numbers of GPUs, such as org/model=0 or org/model=0,1")
    return SharingModel(name, tuple(map(int, gpus.split(","))), vllm if sleeps else None, int(sleeps), suspend=suspend)


def _take_turns(settings: dict[str, Json], sharing: list[SharingModel], idle: float | None) -> None:
    """Adds the turns of models that share GPUs."""
    if not sharing:
        if idle is not None:
            raise click.UsageError("--idle is for models that take turns: name them and their GPUs with --shares")
        return
    by_model, settings["turns"] = turn_settings(sharing, {}, None if idle is None else int(idle))
    for model in settings["models"]:
        if turns := by_model.pop(model["name"], None):
            model["turns"] = turns
    if by_model:
        raise click.UsageError(f"--shares names {next(iter(by_model))}, which no --model does")


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


def _place(text: str) -> dict[str, Json]:
    """A path of a Unix socket, or an address and a port."""
    if text.startswith("/"):
        return {"socket": text}
    address, _, port = text.rpartition(":")
    return {"address": address.strip("[]"), "port": int(port) if port.isdecimal() else port}
