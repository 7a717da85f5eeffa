"""winhost models and workload: the models that fit a host or that winhost knows, renewed from the hub, and a workload
drafted from the files of one.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import click
import yaml

from winhost.cli.envelope import show_results
from winhost.cli.errors import as_winhost_error, os_errors, secret_reference
from winhost.cli.models.commands import DraftOptions, ModelOptions
from winhost.cli.options import HostsAndFacts, Output
from winhost.cli.output import say, show_next, write_file
from winhost.cli.shells import command_line
from winhost.cli.snapshots import Snapshot, highest_exit_code, read_snapshots, with_progress
from winhost.cli.tables import table
from winhost.cli.watch import Watch, show_progress
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.hub.catalogue import SCHEMA, Catalogue, Entry, catalogue, named, refreshed_file
from winhost.hub.draft import SEQUENCES, Draft, Planned, draft
from winhost.hub.refreshed import refreshed
from winhost.hub.repositories import HubRepository, ModelFolder
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import write_whole
from winhost.model.path import check_path
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, GiB
from winhost.model.workload import is_folder
from winhost.serving.fitting import Candidate, fitting, weight_bytes

SHOWN = 12


@dataclass(frozen=True)
class OfferedModel:
    """A repository of the catalogue. weights: bytes, computed where no source tells them; download: bytes of all files,
    known after a refresh, else of its weights; gated: a token is needed; sources: where each value is from.

    On a host also: context and sequences, which are planned for; gpus: that share it; memory: estimated bytes on each;
    verdict; because: codes of reasons; lacks: why it is not offered.
    """

    model: str
    name: str
    released: str
    parameters: int
    dtype: str
    quantization: str | None
    longest: int
    gated: bool
    revision: str | None
    weights: Bytes
    computed: bool
    download: Bytes
    sources: dict[str, str]
    context: int | None = None
    sequences: int | None = None
    gpus: int | None = None
    memory: Bytes | None = None
    verdict: str | None = None
    because: tuple[str, ...] = ()
    lacks: str = ""


@dataclass(frozen=True)
class OfferedModels:
    """The models that are offered for a host, best first. host, path: None for the catalogue itself; read: the day on
    which its sources were read; catalogue: the user's file, if it was refreshed.
    """

    host: str | None
    path: str | None
    read: str
    catalogue: str | None
    models: tuple[OfferedModel, ...]


def show(hosts: HostsAndFacts, asked: ModelOptions, output: Output) -> int:
    path = asked.path
    check_path(path)
    known, reference = catalogue(), secret_reference(asked.token, "'--token'")
    file = str(known.file) if known.file else None
    if asked.model is not None:
        known = replace(known, entries=_meant(asked.model, known, asked.hub, reference))
    if not hosts.sources and not hosts.facts_files:
        listed = OfferedModels(None, None, known.read, file, tuple(map(_listed, known.entries)))
        shown = [("catalogue", listed)]
        show_results("models", output.shape, shown, lambda found: _show_catalogue(found, output.wide), names=_names)
        return 0
    codes = [0]

    def offers(read: Snapshot) -> OfferedModels | WinhostError:
        every = bool(asked.everything or asked.model)
        try:
            found = fitting(read.known, path, token=bool(reference), entries=known.entries, everything=every)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this host's
            failure = as_winhost_error(error)
            codes.append(highest_exit_code([failure]))
            return failure
        way = found[0].variant if found else None
        return OfferedModels(read.host, way, known.read, file, tuple(_listed(each.entry, each) for each in found))

    reads = with_progress(lambda watch: read_snapshots(hosts, watch))
    results = ((read.host, offers(read)) for read in reads)

    def human(found: OfferedModels) -> None:
        _show(found, asked.everything or output.wide, hosts.arguments, hosts.fleet_file)

    show_results("models", output.shape, results, human, names=_names)
    return max(codes)


def _names(found: OfferedModels) -> list[str]:
    return [each.model for each in found.models]


def _meant(model: str, known: Catalogue, hub: str, token: SecretRef | None) -> tuple[Entry, ...]:
    """Find the entries of the catalogue, else make one from the hub or a folder. Raises WinhostError (NotListed)."""
    if found := named(model, known.entries):
        return found
    from winhost.hub.draft import entry_of  # likewise

    return (entry_of(named_repository(model, hub, token)),)


def _listed(entry: Entry, planned: Candidate | None = None) -> OfferedModel:
    """Make the row of a model. planned: how a host would serve it."""
    weights = weight_bytes(entry)
    listed = OfferedModel(
        model=entry.id,
        name=entry.name,
        released=entry.released,
        parameters=entry.parameters,
        dtype=str(entry.dtype),
        quantization=str(entry.quantization) if entry.quantization else None,
        longest=entry.longest,
        gated=entry.gated,
        revision=entry.revision,
        weights=weights,
        computed=entry.weights is None,
        download=entry.download or weights,
        sources=dict(entry.sources),
    )
    if planned is None:
        return listed
    same = {name: getattr(planned, name) for name in ("context", "sequences", "gpus", "memory", "because", "lacks")}
    return replace(listed, **same, verdict=str(planned.verdict))


# ---- for people


def _show_catalogue(found: OfferedModels, wide: bool) -> None:
    # The longest name leaves no more room on a terminal of 80 columns.
    table(
        ("model", "weights", "GiB", *(("context", "parameters", "released") if wide else ())),
        (
            (each.model, _stored(each), f"{each.download / GiB:.1f}")
            + ((_tokens(each.longest), f"{each.parameters / 1e9:.1f} B", each.released) if wide else ())
            for each in found.models
        ),
    )
    say(_catalogue_line(found))
    say("Which of them fit a host: winhost models show HOST")


def _show(found: OfferedModels, whole: bool, named: Sequence[str], fleet_file: Path | None) -> None:
    """Show the models for one host. whole: each repository, not only the best one of each model; named: the words that
    name all hosts.
    """
    if not found.models:
        say(f"{found.host}: nothing of the catalogue fits, or no path can serve there", bold=True)
        show_next(("assess", *named), fleet_file)
        return
    say(f"{found.host} by {found.path}, best first:", bold=True)
    best_of_each = {each.name: each for each in reversed(found.models)}.values()
    shown = found.models if whole else [each for each in found.models if each in best_of_each][:SHOWN]
    columns = ("repository" if whole else "model", "weights", "context", "download", "memory", "verdict")
    table(columns, (_row(each, whole) for each in shown))
    if rest := len(found.models) - len(shown):
        say(f"{rest} more repositories fit: {command_line(('winhost', 'models', *named, '-o', 'wide'))}")
    say("Context: of each of so many sequences. Download in GiB; memory estimated, in GiB on each of so many GPUs.")
    if any(each.gated for each in shown):
        say("Gated: accept the licence on the hub first; then winhost workload init takes --token env:HF_TOKEN")
    say(_catalogue_line(found))
    best = shown[0]
    if not best.lacks and found.host and tuple(named) == (found.host,):
        show_next(("up", best.model, "--on", found.host), fleet_file)
    elif not best.lacks and best.context:
        words = ["workload", "init", best.model, "--context", str(best.context), "--sequences", str(best.sequences)]
        show_next((*words, *(("--gpus", str(best.gpus)) if best.gpus != 1 else ()), "-o", "workload.yaml"))


def _row(each: OfferedModel, whole: bool) -> tuple[object, ...]:
    verdict = f"no: {each.lacks}" if each.lacks else each.verdict
    memory = f"{each.memory / GiB:.1f}" if each.memory else "unknown"
    if each.gpus and each.gpus > 1:
        memory = f"{each.gpus} x {memory}"
    context = f"{_tokens(each.context or 0)} x {each.sequences}"
    return each.model if whole else each.name, _stored(each), context, f"{each.download / GiB:.1f}", memory, verdict


def _tokens(count: int) -> str:
    return f"{count // 1024}k" if count % 1024 == 0 else f"{count:,}"


def _stored(each: OfferedModel) -> str:
    return (each.quantization or each.dtype) + (", gated" if each.gated else "")


def _catalogue_line(found: OfferedModels) -> str:
    if found.catalogue:
        return f"Catalogue of {found.read}, from the hub: {found.catalogue}"
    return f"Catalogue of {found.read}, as it came with winhost; what the hub has now: winhost models refresh"


def refresh(hub: str, token: str | None, output: Output) -> int:
    reference = secret_reference(token, "'--token'")
    secret = reference.resolve() if reference else None
    file, today = refreshed_file(), f"{datetime.now(UTC):%Y-%m-%d}"
    earlier = None
    with suppress(Exception):  # a file that is missing or no YAML will be written anew
        earlier = load_catalogue(file)
    if not isinstance(earlier, dict) or earlier.get("schema") != SCHEMA:
        earlier = None
    with show_progress() as watch, watch.activity("the catalogue", "asking the hub"):
        document, outcomes = refreshed(
            hub.rstrip("/"),
            secret,
            today,
            earlier,
            lambda model: watch(ProgressEvent("the catalogue", "preparing", model)),
        )
    with os_errors():
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_whole(file, [yaml.safe_dump(document, sort_keys=False, width=120)])
    show_results("models-refreshed", output.shape, ((each.model, each) for each in outcomes), lambda _: None)
    if output.shape != "table":
        return 0
    if changed := [each for each in outcomes if each.changed]:
        table(("model", "not as it was"), ((each.model, ", ".join(each.changed)) for each in changed))
    kept = [each.kept for each in outcomes if each.kept]
    for why in kept:
        say(f"Kept as it was: {why}", hang=2)
    say(f"{len(outcomes) - len(kept)} of {len(outcomes)} repositories asked; the catalogue is now {file}")
    return 0


@dataclass(frozen=True)
class Drafted:
    """A drafted workload file. name: the name that the model is served under; revision: empty for a folder; file: the
    written file, if any; text: its content; look: what somebody has to decide or do.
    """

    name: str
    model: str
    revision: str
    assumed: tuple[str, ...]
    look: tuple[str, ...]
    file: str | None
    text: str


def init(asked: DraftOptions, force: bool, output: Output) -> int:
    model = asked.model
    if asked.context is None and (asked.sequences or asked.gpus):
        raise click.UsageError("--sequences and --gpus go with --context: winhost models show HOST names all three")
    reference = secret_reference(asked.token, "'--token'")
    if output.path and output.path.exists() and not force:
        what = f"{visible(str(output.path))} is there already"
        raise UsageError("KeptAsItIs", what=what, hint="Name another file with -o, or write over it with --force")
    repository = named_repository(model, asked.hub, reference, asked.revision)
    planned = Planned(asked.context, asked.sequences or SEQUENCES, asked.gpus or 1) if asked.context else None
    with (
        show_progress() as watch,
        watch.activity(model, "reading the folder" if is_folder(model) else "asking the hub"),
    ):
        made = draft(repository, reference, partial(tell_headers, watch, model), planned)
    if output.path:
        with os_errors():
            write_file(output.path, made.text, "workload", force)
    file = str(output.path) if output.path else None
    drafted = Drafted(made.name, made.model, made.revision, made.assumed, made.look, file, made.text)
    return show_results("draft", output.shape, [(made.model, drafted)], lambda shown: _show_draft(made, shown.file))


def tell_headers(watch: Watch, model: str, done: int, of: int) -> None:
    """Tell how many files of a model's weights are read."""
    said = f"headers of its weights: {done} of {of}"
    watch(ProgressEvent(model, "preparing", said, percent=100 * done // of))


def named_repository(
    model: str, hub: str, token: SecretRef | None, revision: str = "main"
) -> HubRepository | ModelFolder:
    """The model that a user named, before any request. Raises NotListed, and as `at_path` does."""
    if is_folder(model):
        return ModelFolder.at_path(model)
    return HubRepository(model, revision, hub.rstrip("/"), token.resolve() if token else None)


def _show_draft(made: Draft, file: str | None) -> None:
    if file is None:
        click.echo(made.text, nl=False)
        return
    where = f" at {made.revision[:12]}" if made.revision else ""
    say(f"Written to {file}: {made.model}{where}, served as {made.name}")
    for each in made.assumed:
        say(f"Assumed: {each}", hang=2)
    for each in made.look:
        say(f"Look: {each}", hang=2)
    show_next(("assess", "HOST", "--workload", file))
