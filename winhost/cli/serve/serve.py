"""winhost serve profile, files, gateway and explain: how models are served, as settings to copy."""

import re
import sys
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path

import click
import yaml

from winhost.cli.envelope import show_results
from winhost.cli.errors import Faults, secret_reference
from winhost.cli.named_files import read_named_facts
from winhost.cli.options import Output
from winhost.cli.plan.stack_options import key_pair
from winhost.cli.serve.commands import HandMadeGateway
from winhost.cli.tables import table
from winhost.cli.terminal import wrap
from winhost.core.answers import Json
from winhost.core.dataclass import dataclass
from winhost.findings.show import shown
from winhost.gateway.gateway_settings import Limits
from winhost.gateway.key_lines import parse_key
from winhost.gateway.settings_values import WrongSettings
from winhost.hub.repositories import model_files
from winhost.knowledge import catalogue
from winhost.model.errors import visible
from winhost.model.path import path_of, variant_name
from winhost.model.reason import Finding, Severity, Verdict
from winhost.model.units import gib
from winhost.model.workloadfile import load_workload
from winhost.serving.choice import Lost, Served, Serving, serving
from winhost.serving.containers import DEV_MODE, command, program_command, readable_yaml
from winhost.serving.entries import entry
from winhost.serving.gateway_entries import gateway_entries, key_line, yields
from winhost.serving.levels import (
    LADDER,
    MEASURED,
    ON_DISK,
    STOPPED,
    choose,
    format_asleep,
    format_wait,
    preferred,
)
from winhost.serving.profile import base_of
from winhost.serving.sharing import SharingModel, turn_settings
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
    faults = Faults()
    known = faults.collect(lambda: read_named_facts(facts, facts_file))
    if facts is None and facts_file is None:
        faults.add("no facts are named; winhost detect HOST -o FOLDER writes them")
    workload = faults.collect(lambda: load_workload(workload_file))
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
    models = tuple(
        Commanded(**vars(served), command=" ".join(_command(served, found.vllm, suspended))) for served in found.models
    )
    variant = path_of(found.variant), variant_name(found.variant)
    profiled = Profiled(found.host, found.origin, *variant, found.chosen, found.verdict, found.vllm, models)

    def show(_: Profiled) -> None:
        levels = {model.served_name: model.sleep_level for model in workload.models if model.sleep_level}
        show_serving(found, everything, suspended, levels)

    show_results("profile", output.shape, [(found.host, profiled)], show)
    return 0


def _command(served: Served, vllm: str | None, suspended: Collection[str]) -> list[str]:
    """The command for a model. suspended: models whose process leaves its GPU, which no container can."""
    alone = served.served_name in suspended
    return program_command(served.spec) if alone else command(served.model, served.spec, vllm)


def files(model: str, revision: str, folder: str, token: str | None, hub: str) -> int:
    secret_reference(token, "'--token'")
    desired = model_files(model, revision, token, hub.rstrip("/"))
    why = "The model at one revision, each file by its hash."
    made = entry("ModelFiles", f"Files of {model}", {"folder": folder}, desired, why)
    click.echo(yaml.safe_dump([made], sort_keys=False, width=1000), nl=False)
    return 0


def gateway(asked: HandMadeGateway) -> int:
    _check_gateway(asked)
    listen = asked.listen or "127.0.0.1:8443"
    if not listen.startswith("/"):  # a Unix socket, which whoever enters its folder may use
        asked.listening(listen)
    models = [{"name": name, "engine": _address(engine)} for name, engine in map(_pair, asked.models)]
    settings: dict[str, Json] = {"listen": _address(listen), "models": models}
    if asked.plain_http:
        settings["plain_http_beyond_this_machine"] = True
    if asked.trusted_proxies:
        settings["trusted_proxies"] = [*asked.trusted_proxies]
    if asked.proxy_protocol:
        settings["proxy_protocol"] = True
    if asked.yield_key:
        settings["yields"] = yields()
    _take_turns(settings, asked)
    try:
        entries = gateway_entries(settings, [*_key_lines(asked)], asked.tls)
    except WrongSettings as wrong:
        raise _by_option(wrong, asked) from None
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    click.echo(readable_yaml(entries), nl=False)
    return 0


def _check_gateway(asked: HandMadeGateway) -> None:
    """Find options that need another one. Raises click's UsageError."""
    faults = Faults()
    if not asked.api_key:
        faults.add("no API key is named: --api-key alice=env:ALICE_KEY")
    for each in chain(*asked.keys.values()):
        faults.collect(partial(key_pair, each))
    if asked.proxy_protocol and not asked.trusted_proxies:
        faults.add("--proxy-protocol is for proxies: name them with --trusted-proxy 10.20.0.5/32")
    turns = {name for name, _ in map(_pair, asked.shares)}
    given = {"--vllm": asked.vllm, "--no-sleep": asked.no_sleep, "--suspend": asked.suspend, "--idle": asked.idle}
    for option in (option for option, value in given.items() if value not in (None, False) and not turns):
        faults.add(f"{option} is for models that take turns: name them and their GPUs with --shares")
    if turns and not asked.no_sleep and asked.vllm is None:
        faults.add(f"models that sleep between their turns need the version of vLLM: --vllm {seen_versions()[-1]}")
    for name, _ in map(_pair, asked.models) if asked.yield_key else ():
        if name not in turns:
            faults.add(f"--yield-key: {name} takes no turns, so it cannot leave its GPU: --shares {name}=0")
    faults.refuse()


def _key_lines(asked: HandMadeGateway) -> Iterator[str]:
    """Yield the lines of all keys. Raises click's UsageError for a name that is invalid or used twice."""
    names: set[str] = set()
    for kind, given in asked.keys.items():
        option = f"--{kind}-key"
        for name, reference in map(key_pair, given):
            try:
                found = key_line(kind, name, reference)
            except ValueError as wrong:  # which repeats nothing of what may be the key itself
                raise click.UsageError(f"{option}: {wrong}") from None
            try:
                own = parse_key(found).name
            except ValueError:
                raise click.UsageError(f"{option}: {_NAME_OF_KEY}") from None
            if own in names:
                raise click.UsageError(f"{option} {visible(own)}: another key has this name already")
            names.add(own)
            yield found


_NAME_OF_KEY = (
    "the name of a key has up to 64 letters, digits, dots, dashes and underscores; that of a key for metrics may go "
    "on with a colon and models, with commas between them"
)
_OPTION_OF = {
    "engine": "--model",
    "name": "--model",
    "gpus": "--shares",
    "version": "--vllm",
    "suspend": "--suspend",
    "trusted_proxies": "--trusted-proxy",
}
"""The option that gives a value of the gateway's settings."""


def _by_option(wrong: WrongSettings, asked: HandMadeGateway) -> click.UsageError:
    """Turn an error about a key of the gateway's settings, such as models[0].engine, into one about the option."""
    where, _, why = str(wrong).partition(": ")
    keys = re.findall(r"[a-z_]+", where)
    option = next((_OPTION_OF[key] for key in reversed(keys) if key in _OPTION_OF), None)
    number = re.search(r"\[(\d+)\]", where)
    values = {"--model": asked.models, "--trusted-proxy": asked.trusted_proxies}.get(option or "")
    value = f" {values[int(number[1])]}" if values and number else ""
    said = re.sub(r" does not match .*", " is not valid here", why.replace("between: stop", "add --no-sleep"))
    return click.UsageError(visible(f"{option}{value}: {said}" if option else str(wrong)))


def _take_turns(settings: dict[str, Json], asked: HandMadeGateway) -> None:
    """Add the turns of models that share GPUs to the settings."""
    if not asked.shares:
        return
    sharing, (vllm, level) = [], (None, 0) if asked.no_sleep else (asked.vllm, 1)
    for text in asked.shares:
        name, numbers = _pair(text)
        gpus = numbers.split(",")
        if not all(gpu.isdecimal() for gpu in gpus):
            raise click.UsageError(
                f"{text!r} is not NAME=GPUS with numbers of GPUs, such as org/model=0 or org/model=0,1"
            )
        sharing.append(SharingModel(name, tuple(map(int, gpus)), vllm, level, suspend=asked.suspend))
    by_model, settings["turns"] = turn_settings(sharing, None if asked.idle is None else int(asked.idle))
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


def _address(text: str) -> dict[str, Json]:
    """Parse the path of a Unix socket, or an address and a port."""
    if text.startswith("/"):
        return {"socket": text}
    address, _, port = text.rpartition(":")
    return {"address": address.strip("[]"), "port": int(port) if port.isdecimal() else port}


def explain(
    weights: float | None, host_memory: float | None, swap_within: float | None, pinned: bool, reloads: bool
) -> int:
    if (weights is None) is not (host_memory is None):
        raise click.UsageError("--weights and --host-memory go together")
    if swap_within is not None and weights is None:
        raise click.UsageError("--swap-within needs --weights and --host-memory")
    columns = ("between its turns", "back in", "away in", "host memory", "stays on the GPU", "needs")
    rows = []
    for rung in LADDER:
        fastest, slowest = rung.back
        back = "at once" if not any(rung.back) else f"{fastest:g} s"
        back = f"{fastest:g} to {slowest:g} s" if fastest != slowest else back
        memory = f"{rung.of_weights:g} x weights" if rung.of_weights else "none"
        rows.append((rung.name, back, rung.away, memory, rung.gpu, rung.needs))
    table(columns, rows, title="From the fastest to the slowest")
    click.echo(f"Measured: {MEASURED}. Nobody has measured WSL.")
    if weights is not None and host_memory is not None:
        rungs = [rung for rung in preferred(pinned, reloads) if rung.of_weights * weights <= host_memory]
        chosen = choose(rungs, weights, swap_within)
        said = f"Take: {chosen.rung}. It answers, once another one like it has left, after about "
        said += f"{chosen.seconds:.1f} s with {weights:g} GiB of weights (estimate)"
        if swap_within is not None:
            said += f", within {swap_within:g} s" if chosen.kept else f", which is later than {swap_within:g} s"
        click.echo(f"{said}.")
        image, cold = (rung.start(weights) for rung in (ON_DISK, STOPPED))
        said = "A standby that does not fit beside its model is the same engine, started anew: after about "
        said += f"{image:.0f} s from its image on disk, {cold:.0f} s cold (estimates)."
        click.echo(f"{said} Requests wait for {Limits.hold} s.")
    return 0


def show_serving(
    found: Serving, everything: bool, suspended: Collection[str] = (), levels: Mapping[str, int] | None = None
) -> None:
    """Print one block for each model. All but the commands are comments, so that the whole can be run. suspended:
    models whose process leaves its GPU; levels: the sleep levels that the workload states.
    """
    simulated = " (simulated)" if found.origin == "synthetic" else ""
    _comment(f"{found.host}{simulated} by {found.variant}: {found.verdict}", bold=True)
    _comment(f"  {found.variant}: {found.chosen}")
    for served in found.models:
        click.echo()
        _comment(f"{served.model}: profile {served.profile}", bold=True)
        alone = served.served_name in suspended
        level = (levels or {}).get(served.served_name) if served.lost else None
        unkept = [_UNKEPT.format(level=level)] if level else []
        how = ", packed, with winhost's loader beside vLLM" if served.spec.packed else ""
        files_of = _FILES.format(id=served.id, folder=served.spec.folder, how=how, socket=served.socket)
        for sentence in (files_of, *([_SUSPENDED] if alone else []), *unkept, *_notes(served)):
            _comment(f"  {sentence}")
        # Not wrapped: a terminal breaks a line where it likes, and the shell still takes it for one.
        click.echo(" \\\n  ".join(_command(served, found.vllm, suspended)))
        if everything:
            for cause in served.because:
                _explain(cause, f"profile {served.profile}")
            for line in (*served.lines, *served.left_out):
                computed = {"computed": line.how, "default": line.default}
                details = [f"{what}: {told}" for what, told in computed.items() if told]
                _explain(line.reason, f"left out: {line.text}" if line.left_out else line.text, *details)
    if not everything:
        click.echo()
        _comment("The reason, versions and evidence of each line: --explain")


_FILES = (
    "The files of {id} are expected in {folder}{how}, and the gateway at {socket}, in a folder that only root and its "
    "group enter: winhost plan HOST --workload WORKLOAD sets up all of this"
)
_SUSPENDED = (
    "Between its turns its process leaves the GPU (suspend), which works with one process of a unit and with no "
    "container: this is vLLM's own program, and a plan makes its unit"
)


_UNKEPT = (
    "The workload states sleep_level: {level}, and this profile does not keep it. winhost assess judges the workload "
    "as stated; without sleep_level it allows what this profile does"
)


def _notes(served: Served) -> Iterator[str]:
    for cause in served.because:
        if cause.lacks:
            yield f"Sleep mode may be unsafe: {cause.sentence} Unverified: {cause.lacks}."
        else:
            yield f"Sleep mode is unsafe: {cause.sentence}"
    yield from _between_turns(served)
    for line in served.lines:
        if line.kind == "note":
            yield f"{line.name}. {line.reason.sentence}"
        elif line.kind == "wslconfig":
            yield f".wslconfig, [wsl2]: {line.name}={line.value}. {line.reason.sentence}"
            yield f"  {line.how}"
        elif line.doubt:
            yield f"{line.text} is unverified: {line.doubt}"
    for line in served.left_out:
        undecided = "undecided: " if line.reason.lacks else ""
        yield f"{line.text} is left out, {undecided}{line.doubt}. {line.reason.sentence}"


def _between_turns(served: Served) -> Iterator[str]:
    if any(line.name == DEV_MODE for line in served.lines):
        yield "Not in development mode, which sleep takes: everybody who reaches the engine could run code in it"
        yield f"  A plan turns it on behind the gateway; by hand: {DEV_MODE}=1, if nobody else reaches the socket"
    if served.asleep:
        yield f"Between its turns {format_asleep(served.asleep)}"
    if served.anew:
        yield f"Its standby is the same engine, started anew {format_wait(served.anew, Limits.hold)}"
    if served.lost:
        yield from _lost(served.lost)


def _lost(lost: Lost) -> Iterator[str]:
    if lost.waking and lost.weights and lost.reading:
        quick, slow = lost.waking
        yield f"What that costs: waking takes {quick:.1f} to {slow:.1f} s, as measured elsewhere"
        yield f"  Reading {gib(lost.weights)} of weights takes {lost.reading:.1f} s at {lost.read_speed} MB/s"
    else:
        yield "What that costs: the time to wake and to read is unknown, because the size of the weights is"
    quick, slow = lost.starting
    yield f"  A full start was measured at {quick:g} s with warm caches and {slow:g} s with cold ones"
    if lost.kept is False:
        yield f"  swap_within: {lost.within} s cannot be met: a start takes at least {lost.least:.0f} s"


def _explain(reason: Finding, position: str, *details: str) -> None:
    told = shown(
        reason,
        severity="" if reason.severity is Severity.NOTE else reason.severity,
        position=position,
        details=details,
        unverified=reason.lacks or "",
        evidence=catalogue.evidence_of(reason.evidence),
    )
    _comment(f"  {told.head}")
    for each in told.body:
        _comment(f"      {each}")


def _comment(text: str, *, bold: bool = False) -> None:
    """Print each line of a text as a comment, so that the shell runs none of them."""
    lines = wrap(visible(text), 2, sys.stdout, lead="# ")
    click.echo(click.style(lines, bold=True) if bold else lines)
