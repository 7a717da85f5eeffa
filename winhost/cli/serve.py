"""winhost serve: how models are served on a target."""

from dataclasses import dataclass
from pathlib import Path

import click
import yaml

from winhost.cli.envelope import show_results
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.outputs import Output
from winhost.cli.show_profile import show_serving
from winhost.model.path import path_of, variant_name
from winhost.model.reason import Verdict
from winhost.model.secrets import SecretRef
from winhost.model.workloadfile import load_workload
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.serving.choice import Served, Serving, serving
from winhost.serving.command import command
from winhost.serving.hub_listing import model_files


@dataclass(frozen=True)
class Commanded(Served):
    """A model with the command that serves it."""

    command: str


@dataclass(frozen=True)
class Profiled:
    """How the models of a workload are served on a host: see Serving."""

    host: str
    origin: str
    path: str
    variant: str | None
    chosen: str
    verdict: Verdict
    vllm: str | None
    models: tuple[Commanded, ...]

    @classmethod
    def of(cls, found: Serving) -> "Profiled":
        """With the command of each model."""
        models = tuple(
            Commanded(**vars(served), command=" ".join(command(served, found.vllm))) for served in found.models
        )
        variant = path_of(found.variant), variant_name(found.variant)
        return cls(found.host, found.origin, *variant, found.chosen, found.verdict, found.vllm, models)


def profile(
    facts: Path | None,
    facts_file: Path | None,
    workload_file: Path,
    named: str | None,
    read_speed: int,
    everything: bool,
    output: Output,
) -> int:
    """Print the settings of vLLM for each model, ready to copy, with the reason of each line."""
    file = named_facts(facts, facts_file, "--target")
    if file is None:
        raise click.UsageError("no facts are named; winhost detect HOST -o FOLDER writes them")
    found = serving(HostFacts(read_facts(file)), load_workload(workload_file), named, read_speed)
    show_results("profile", output.shape, [(found.host, Profiled.of(found))], lambda _: show_serving(found, everything))
    return 0


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
