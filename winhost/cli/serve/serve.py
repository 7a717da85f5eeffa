"""winhost serve profile, files, gateway and explain: print settings to copy, and compare states between turns."""

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
from winhost.findings.show import finding_view
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
from winhost.serving.choice import Served, Serving, StopCost, serving
from winhost.serving.containers import DEV_MODE, command, program_command, readable_yaml
from winhost.serving.entries import entry
from winhost.serving.gateway_entries import gateway_entries, key_line, yields
from winhost.serving.levels import (
    LADDER,
    MEASURED,
    ON_DISK,
    STOPPED,
    choose,
    format_restart,
    format_turn_state,
    preferred_rungs,
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
    """The settings with which a host serves the models of a workload: see Serving."""

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
    profile_name: str | None,
    path: str | None,
    read_speed: int,
    everything: bool,
    output: Output,
) -> int:
    faults = Faults()
    host_facts = faults.collect(lambda: read_named_facts(facts, facts_file))
    if facts is None and facts_file is None:
        faults.add("no facts are named; winhost detect HOST -o FOLDER writes them")
    workload = faults.collect(lambda: load_workload(workload_file))
    if path and host_facts and host_facts.is_linux:
        faults.add(f"--path {path} is for a Windows host, and this is a Linux already: leave it out")
    if path and profile_name and base_of(profile_name) not in (path, "bare-metal"):
        faults.add(f"--path {path} contradicts --profile {profile_name}: leave one out")
    faults.refuse()
    assert host_facts is not None
    assert workload is not None
    if "vllm" not in workload.versions:  # the version of the image that a plan uses
        workload = replace(workload, versions={**workload.versions, "vllm": seen_versions()[-1]})
    result = serving(host_facts, workload, profile_name, read_speed, path)
    suspended = {model.served_name for model in workload.models if model.suspend}
    models = tuple(
        Commanded(**vars(served), command=" ".join(_engine_command(served, result.vllm, suspended)))
        for served in result.models
    )
    variant = path_of(result.variant), variant_name(result.variant)
    profiled = Profiled(result.host, result.origin, *variant, result.chosen, result.verdict, result.vllm, models)

    def show(_: Profiled) -> None:
        levels = {model.served_name: model.sleep_level for model in workload.models if model.sleep_level}
        show_serving(result, everything, suspended, levels)

    show_results("profile", output.shape, [(result.host, profiled)], show)
    return 0


def _engine_command(served: Served, vllm: str | None, suspended: Collection[str]) -> list[str]:
    """Return the command for a model. suspended: models whose process leaves its GPU, which needs a unit of its own."""
    is_suspended = served.served_name in suspended
    return program_command(served.spec) if is_suspended else command(served.model, served.spec, vllm)


def files(model: str, revision: str, folder: str, token: str | None, hub: str) -> int:
    secret_reference(token, "'--token'")
    desired = model_files(model, revision, token, hub.rstrip("/"))
    why = "The model at one revision, each file by its hash."
    playbook_entry = entry("ModelFiles", f"Files of {model}", {"folder": folder}, desired, why)
    click.echo(yaml.safe_dump([playbook_entry], sort_keys=False, width=1000), nl=False)
    return 0


def gateway(options: HandMadeGateway) -> int:
    _check_gateway_options(options)
    listen = options.listen or "127.0.0.1:8443"
    if not listen.startswith("/"):  # access to a Unix socket follows from the permissions of its folder
        options.listening(listen)
    models = [{"name": name, "engine": _parse_address(engine)} for name, engine in map(_split_pair, options.models)]
    settings: dict[str, Json] = {"listen": _parse_address(listen), "models": models}
    if options.plain_http:
        settings["plain_http_beyond_this_machine"] = True
    if options.trusted_proxies:
        settings["trusted_proxies"] = [*options.trusted_proxies]
    if options.proxy_protocol:
        settings["proxy_protocol"] = True
    if options.yield_key:
        settings["yields"] = yields()
    _add_turns(settings, options)
    try:
        entries = gateway_entries(settings, [*_key_lines(options)], options.tls)
    except WrongSettings as error:
        raise _option_error(error, options) from None
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    click.echo(readable_yaml(entries), nl=False)
    return 0


def _check_gateway_options(options: HandMadeGateway) -> None:
    """Check that options which need another one have it. Raises click.UsageError."""
    faults = Faults()
    if not options.api_key:
        faults.add("no API key is named: --api-key alice=env:ALICE_KEY")
    for each in chain(*options.keys.values()):
        faults.collect(partial(key_pair, each))
    if options.proxy_protocol and not options.trusted_proxies:
        faults.add("--proxy-protocol is for proxies: name them with --trusted-proxy 10.20.0.5/32")
    sharing = {name for name, _ in map(_split_pair, options.shares)}
    turn_options = {
        "--vllm": options.vllm,
        "--no-sleep": options.no_sleep,
        "--suspend": options.suspend,
        "--idle": options.idle,
    }
    for option in (option for option, value in turn_options.items() if value not in (None, False) and not sharing):
        faults.add(f"{option} is for models that take turns: name them and their GPUs with --shares")
    if sharing and not options.no_sleep and options.vllm is None:
        faults.add(f"models that sleep between their turns need the version of vLLM: --vllm {seen_versions()[-1]}")
    for name, _ in map(_split_pair, options.models) if options.yield_key else ():
        if name not in sharing:
            faults.add(f"--yield-key: {name} takes no turns, so it cannot leave its GPU: add --shares {name}=0")
    faults.refuse()


def _key_lines(options: HandMadeGateway) -> Iterator[str]:
    """Yield the lines of all keys. Raises click's UsageError for a name that is invalid or used twice."""
    names: set[str] = set()
    for kind, key_references in options.keys.items():
        option = f"--{kind}-key"
        for name, reference in map(key_pair, key_references):
            try:
                line = key_line(kind, name, reference)
            except ValueError as error:  # its message does not contain the key
                raise click.UsageError(f"{option}: {error}") from None
            try:
                name_in_line = parse_key(line).name
            except ValueError:
                raise click.UsageError(f"{option}: {_KEY_NAME_RULE}") from None
            if name_in_line in names:
                raise click.UsageError(f"{option} {visible(name_in_line)}: another key has this name already")
            names.add(name_in_line)
            yield line


_KEY_NAME_RULE = (
    "the name of a key has up to 64 letters, digits, dots, dashes and underscores; a colon and a list of models with "
    "commas may follow the name of a key for metrics"
)
_OPTIONS_BY_KEY = {
    "engine": "--model",
    "name": "--model",
    "gpus": "--shares",
    "version": "--vllm",
    "suspend": "--suspend",
    "trusted_proxies": "--trusted-proxy",
}
"""The option that sets each key of the gateway's settings."""


def _option_error(error: WrongSettings, options: HandMadeGateway) -> click.UsageError:
    """Convert an error about a key of the gateway's settings, such as models[0].engine, to one about the option."""
    key_path, _, reason = str(error).partition(": ")
    keys = re.findall(r"[a-z_]+", key_path)
    option = next((_OPTIONS_BY_KEY[key] for key in reversed(keys) if key in _OPTIONS_BY_KEY), None)
    number = re.search(r"\[(\d+)\]", key_path)
    values = {"--model": options.models, "--trusted-proxy": options.trusted_proxies}.get(option or "")
    value = f" {values[int(number[1])]}" if values and number else ""
    text = re.sub(r" does not match .*", " is not valid here", reason.replace("between: stop", "add --no-sleep"))
    return click.UsageError(visible(f"{option}{value}: {text}" if option else str(error)))


def _add_turns(settings: dict[str, Json], options: HandMadeGateway) -> None:
    """Add the turns of models that share GPUs to the settings. Raises click.UsageError."""
    if not options.shares:
        return
    sharing_models, (vllm, level) = [], (None, 0) if options.no_sleep else (options.vllm, 1)
    for text in options.shares:
        name, numbers = _split_pair(text)
        gpus = numbers.split(",")
        if not all(gpu.isdecimal() for gpu in gpus):
            raise click.UsageError(
                f"{text!r} is not NAME=GPUS with numbers of GPUs, such as org/model=0 or org/model=0,1"
            )
        sharing_models.append(SharingModel(name, tuple(map(int, gpus)), vllm, level, suspend=options.suspend))
    by_model, settings["turns"] = turn_settings(sharing_models, None if options.idle is None else int(options.idle))
    for model in settings["models"]:
        if turns := by_model.pop(model["name"], None):
            model["turns"] = turns
    if by_model:
        raise click.UsageError(f"--shares names {next(iter(by_model))}, which no --model does")


def _split_pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise click.UsageError(f"{text!r} is not NAME=VALUE")
    return name, value


def _parse_address(text: str) -> dict[str, Json]:
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
        fastest, slowest = rung.return_seconds
        back = "at once" if not any(rung.return_seconds) else f"{fastest:g} s"
        back = f"{fastest:g} to {slowest:g} s" if fastest != slowest else back
        memory = f"{rung.ram_per_weight:g} x weights" if rung.ram_per_weight else "none"
        rows.append((rung.name, back, rung.leave_text, memory, rung.gpu, rung.needs))
    table(columns, rows, title="From the fastest to the slowest")
    click.echo(f"Measured: {MEASURED}. WSL has not been measured.")
    if weights is not None and host_memory is not None:
        rungs = [rung for rung in preferred_rungs(pinned, reloads) if rung.ram_per_weight * weights <= host_memory]
        chosen = choose(rungs, weights, swap_within)
        sentence = f"Take: {chosen.rung}. It answers, once another one like it has left, after about "
        sentence += f"{chosen.seconds:.1f} s with {weights:g} GiB of weights (estimate)"
        if swap_within is not None:
            sentence += f", within {swap_within:g} s" if chosen.kept else f", which is later than {swap_within:g} s"
        click.echo(f"{sentence}.")
        image, cold = (rung.start_seconds(weights) for rung in (ON_DISK, STOPPED))
        sentence = "A standby that does not fit next to its model is the same engine, started anew: after about "
        sentence += f"{image:.0f} s from its image on disk, {cold:.0f} s cold (estimates)."
        click.echo(f"{sentence} Requests wait for {Limits.hold} s.")
    return 0


def show_serving(
    result: Serving, everything: bool, suspended: Collection[str] = (), levels: Mapping[str, int] | None = None
) -> None:
    """Print one block for each model. All lines except the commands are comments, so that a shell can run the output.
    suspended: models whose process leaves its GPU; levels: the sleep levels that the workload states.
    """
    simulated = " (simulated)" if result.origin == "synthetic" else ""
    _print_comment(f"{result.host}{simulated} by {result.variant}: {result.verdict}", bold=True)
    _print_comment(f"  {result.variant}: {result.chosen}")
    for served in result.models:
        click.echo()
        _print_comment(f"{served.model}: profile {served.profile}", bold=True)
        is_suspended = served.served_name in suspended
        level = (levels or {}).get(served.served_name) if served.lost else None
        ignored_level = [_IGNORED_LEVEL.format(level=level)] if level else []
        packed_note = ", packed, with winhost's loader beside vLLM" if served.spec.packed else ""
        files_note = _FILES_NOTE.format(id=served.id, folder=served.spec.folder, how=packed_note, socket=served.socket)
        for sentence in (files_note, *([_SUSPENDED_NOTE] if is_suspended else []), *ignored_level, *_notes(served)):
            _print_comment(f"  {sentence}")
        # Not wrapped here: a line that the terminal wraps can still be copied as one line.
        click.echo(" \\\n  ".join(_engine_command(served, result.vllm, suspended)))
        if everything:
            for cause in served.because:
                _print_reason(cause, f"profile {served.profile}")
            for line in (*served.lines, *served.left_out):
                computed = {"computed": line.how, "default": line.default}
                details = [f"{what}: {value}" for what, value in computed.items() if value]
                _print_reason(line.reason, f"left out: {line.text}" if line.is_omitted else line.text, *details)
    if not everything:
        click.echo()
        _print_comment("The reason, versions and evidence of each line: --explain")


_FILES_NOTE = (
    "The files of {id} are expected in {folder}{how}, and the gateway at {socket}, in a folder that only root and its "
    "group may enter: winhost plan HOST --workload WORKLOAD sets up all of this"
)
_SUSPENDED_NOTE = (
    "Between its turns its process leaves the GPU (suspend), which works only for a unit with a single process, not "
    "for a container: the command starts vLLM's own program, and a plan makes its unit"
)


_IGNORED_LEVEL = (
    "The workload states sleep_level: {level}, and this profile ignores it. winhost assess judges the workload as "
    "stated; without sleep_level it accepts what this profile does"
)


def _notes(served: Served) -> Iterator[str]:
    for cause in served.because:
        if cause.lacks:
            yield f"Sleep mode may be unsafe: {cause.sentence} Unverified: {cause.lacks}."
        else:
            yield f"Sleep mode is unsafe: {cause.sentence}"
    yield from _turn_notes(served)
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


def _turn_notes(served: Served) -> Iterator[str]:
    if any(line.name == DEV_MODE for line in served.lines):
        yield "Not in development mode, which sleep needs: everybody who reaches the engine could run code in it"
        yield f"  A plan turns it on behind the gateway; by hand: {DEV_MODE}=1, if nobody else reaches the socket"
    if served.asleep:
        yield f"Between its turns {format_turn_state(served.asleep)}"
    if served.anew:
        yield f"Its standby is the same engine, started anew {format_restart(served.anew, Limits.hold)}"
    if served.lost:
        yield from _cost_lines(served.lost)


def _cost_lines(cost: StopCost) -> Iterator[str]:
    if cost.waking and cost.weights and cost.reading:
        quick, slow = cost.waking
        yield f"What that costs: waking takes {quick:.1f} to {slow:.1f} s, as measured on other machines"
        yield f"  Reading {gib(cost.weights)} of weights takes {cost.reading:.1f} s at {cost.read_speed} MB/s"
    else:
        yield "What that costs: the time to wake and to read is unknown, because the size of the weights is"
    quick, slow = cost.starting
    yield f"  A full start was measured at {quick:g} s with warm caches and {slow:g} s with cold ones"
    if cost.kept is False:
        yield f"  swap_within: {cost.within} s cannot be met: a start takes at least {cost.least:.0f} s"


def _print_reason(reason: Finding, position: str, *details: str) -> None:
    finding = finding_view(
        reason,
        severity="" if reason.severity is Severity.NOTE else reason.severity,
        position=position,
        details=details,
        unverified=reason.lacks or "",
        evidence=catalogue.evidence_of(reason.evidence),
    )
    _print_comment(f"  {finding.head}")
    for each in finding.body:
        _print_comment(f"      {each}")


def _print_comment(text: str, *, bold: bool = False) -> None:
    """Print a text as shell comments."""
    lines = wrap(visible(text), 2, sys.stdout, lead="# ")
    click.echo(click.style(lines, bold=True) if bold else lines)
