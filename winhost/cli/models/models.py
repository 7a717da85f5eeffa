"""winhost models and workload: show the models that fit a host or that winhost knows, refresh the catalogue from the
hub, and draft a workload from the files of a model.
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
from winhost.hub.refreshed import refresh_catalogue
from winhost.hub.repositories import HubRepository, ModelFolder
from winhost.model.catalogue_file import load_catalogue
from winhost.model.errors import UsageError, WinhostError, visible
from winhost.model.files import write_whole
from winhost.model.path import check_path
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, GiB
from winhost.model.workload import is_folder
from winhost.serving.fitting import Candidate, find_candidates, weight_bytes

MAX_ROWS = 12


@dataclass(frozen=True)
class OfferedModel:
    """A repository of the catalogue. weights: their bytes, computed if no source states them; download: the bytes of
    all files after a refresh, else of the weights; gated: a token is needed; sources: the source of each value.

    On a host also: context and sequences, for which it is planned; gpus: how many share it; memory: the estimated bytes
    on each GPU; verdict; because: codes of reasons; lacks: why it is not offered.
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
    """The models that are offered for a host, best first. host, path: None for the whole catalogue; read: the day on
    which the sources of the catalogue were read; catalogue: the user's file, if it was refreshed.
    """

    host: str | None
    path: str | None
    read: str
    catalogue: str | None
    models: tuple[OfferedModel, ...]


def show(hosts: HostsAndFacts, options: ModelOptions, output: Output) -> int:
    path = options.path
    check_path(path)
    known_models, reference = catalogue(), secret_reference(options.token, "'--token'")
    file = str(known_models.file) if known_models.file else None
    if options.model is not None:
        known_models = replace(known_models, entries=_find_entries(options.model, known_models, options.hub, reference))
    if not hosts.sources and not hosts.facts_files:
        whole_catalogue = OfferedModels(
            None, None, known_models.read, file, tuple(map(_make_row, known_models.entries))
        )
        result = [("catalogue", whole_catalogue)]
        show_results(
            "models", output.shape, result, lambda models: _show_catalogue(models, output.wide), names=_model_names
        )
        return 0
    codes = [0]

    def offer_models(snapshot: Snapshot) -> OfferedModels | WinhostError:
        show_all = bool(options.everything or options.model)
        try:
            candidates = find_candidates(
                snapshot.required_facts, path, token=bool(reference), entries=known_models.entries, everything=show_all
            )
        except Exception as error:  # noqa: BLE001 - any failure belongs to this host alone
            failure = as_winhost_error(error)
            codes.append(highest_exit_code([failure]))
            return failure
        variant = candidates[0].variant if candidates else None
        return OfferedModels(
            snapshot.host, variant, known_models.read, file, tuple(_make_row(each.entry, each) for each in candidates)
        )

    snapshots = with_progress(lambda watch: read_snapshots(hosts, watch))
    results = ((snapshot.host, offer_models(snapshot)) for snapshot in snapshots)

    def show_for_people(offered: OfferedModels) -> None:
        _show_offers(offered, options.everything or output.wide, hosts.arguments, hosts.fleet_file)

    show_results("models", output.shape, results, show_for_people, names=_model_names)
    return max(codes)


def _model_names(offers: OfferedModels) -> list[str]:
    return [each.model for each in offers.models]


def _find_entries(model: str, known: Catalogue, hub: str, token: SecretRef | None) -> tuple[Entry, ...]:
    """Return the entries of the catalogue, else make one from the hub or a folder. Raises WinhostError (NotListed)."""
    if entries := named(model, known.entries):
        return entries
    from winhost.hub.draft import entry_of  # loads the reader of models, which the catalogue does not need

    return (entry_of(open_repository(model, hub, token)),)


def _make_row(entry: Entry, planned: Candidate | None = None) -> OfferedModel:
    """Make the row of a model. planned: the way in which a host would serve it."""
    weights = weight_bytes(entry)
    row = OfferedModel(
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
        return row
    values = {name: getattr(planned, name) for name in ("context", "sequences", "gpus", "memory", "because", "lacks")}
    return replace(row, **values, verdict=str(planned.verdict))


# ---- text for people


def _show_catalogue(offers: OfferedModels, wide: bool) -> None:
    # On 80 columns, the longest name leaves room for these columns only.
    table(
        ("model", "weights", "GiB", *(("context", "parameters", "released") if wide else ())),
        (
            (each.model, _format_weights(each), f"{each.download / GiB:.1f}")
            + ((_format_tokens(each.longest), f"{each.parameters / 1e9:.1f} B", each.released) if wide else ())
            for each in offers.models
        ),
    )
    say(_catalogue_line(offers))
    say("Which of them fit a host: winhost models show HOST")


def _show_offers(
    offers: OfferedModels, every_repository: bool, host_arguments: Sequence[str], fleet_file: Path | None
) -> None:
    """Show the models for one host. every_repository: show each one, not only the best one of each model;
    host_arguments: the arguments that name all hosts.
    """
    if not offers.models:
        say(f"{offers.host}: nothing of the catalogue fits, or no path can serve there", bold=True)
        show_next(("assess", *host_arguments), fleet_file)
        return
    say(f"{offers.host} by {offers.path}, best first:", bold=True)
    best_of_each = {each.name: each for each in reversed(offers.models)}.values()
    shown = offers.models if every_repository else [each for each in offers.models if each in best_of_each][:MAX_ROWS]
    columns = ("repository" if every_repository else "model", "weights", "context", "download", "memory", "verdict")
    table(columns, (_format_row(each, every_repository) for each in shown))
    if hidden := len(offers.models) - len(shown):
        say(f"{hidden} more repositories fit: {command_line(('winhost', 'models', *host_arguments, '-o', 'wide'))}")
    say("Context x sequences. Download in GiB; estimated memory in GiB on each GPU, as GPUs x GiB.")
    if any(each.gated for each in shown):
        say("Gated: accept the licence on the hub first; then winhost workload init takes --token env:HF_TOKEN")
    say(_catalogue_line(offers))
    best = shown[0]
    if not best.lacks and offers.host and tuple(host_arguments) == (offers.host,):
        show_next(("up", best.model, "--on", offers.host), fleet_file)
    elif not best.lacks and best.context:
        arguments = ["workload", "init", best.model, "--context", str(best.context), "--sequences", str(best.sequences)]
        show_next((*arguments, *(("--gpus", str(best.gpus)) if best.gpus != 1 else ()), "-o", "workload.yaml"))


def _format_row(each: OfferedModel, every_repository: bool) -> tuple[object, ...]:
    verdict = f"no: {each.lacks}" if each.lacks else each.verdict
    memory = f"{each.memory / GiB:.1f}" if each.memory else "unknown"
    if each.gpus and each.gpus > 1:
        memory = f"{each.gpus} x {memory}"
    context = f"{_format_tokens(each.context or 0)} x {each.sequences}"
    return (
        each.model if every_repository else each.name,
        _format_weights(each),
        context,
        f"{each.download / GiB:.1f}",
        memory,
        verdict,
    )


def _format_tokens(count: int) -> str:
    return f"{count // 1024}k" if count % 1024 == 0 else f"{count:,}"


def _format_weights(each: OfferedModel) -> str:
    return (each.quantization or each.dtype) + (", gated" if each.gated else "")


def _catalogue_line(offers: OfferedModels) -> str:
    if offers.catalogue:
        return f"Catalogue of {offers.read}, from the hub: {offers.catalogue}"
    return f"Catalogue of {offers.read}, as shipped with winhost; to update it from the hub: winhost models refresh"


def refresh(hub: str, token: str | None, output: Output) -> int:
    reference = secret_reference(token, "'--token'")
    secret = reference.resolve() if reference else None
    file, today = refreshed_file(), f"{datetime.now(UTC):%Y-%m-%d}"
    earlier = None
    with suppress(Exception):  # if the file is missing or not YAML, it is written again
        earlier = load_catalogue(file)
    if not isinstance(earlier, dict) or earlier.get("schema") != SCHEMA:
        earlier = None
    with show_progress() as watch, watch.activity("the catalogue", "asking the hub"):
        document, outcomes = refresh_catalogue(
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
    if changed_models := [each for each in outcomes if each.changed]:
        table(("model", "changed"), ((each.model, ", ".join(each.changed)) for each in changed_models))
    reasons = [each.kept for each in outcomes if each.kept]
    for reason in reasons:
        say(f"Unchanged: {reason}", hang=2)
    say(f"{len(outcomes) - len(reasons)} of {len(outcomes)} repositories read; the catalogue is now {file}")
    return 0


@dataclass(frozen=True)
class Drafted:
    """A drafted workload file. name: the name under which the model is served; revision: empty for a folder; file: the
    written file, if any; text: its content; look: what the user has to decide or do.
    """

    name: str
    model: str
    revision: str
    assumed: tuple[str, ...]
    look: tuple[str, ...]
    file: str | None
    text: str


def init(options: DraftOptions, force: bool, output: Output) -> int:
    model = options.model
    if options.context is None and (options.sequences or options.gpus):
        raise click.UsageError("--sequences and --gpus go with --context: winhost models show HOST names all three")
    reference = secret_reference(options.token, "'--token'")
    if output.path and output.path.exists() and not force:
        what = f"{visible(str(output.path))} is there already"
        raise UsageError("KeptAsItIs", what=what, hint="Name another file with -o, or write over it with --force")
    repository = open_repository(model, options.hub, reference, options.revision)
    planned = Planned(options.context, options.sequences or SEQUENCES, options.gpus or 1) if options.context else None
    with (
        show_progress() as watch,
        watch.activity(model, "reading the folder" if is_folder(model) else "asking the hub"),
    ):
        result = draft(repository, reference, partial(report_headers, watch, model), planned)
    if output.path:
        with os_errors():
            write_file(output.path, result.text, "workload", force)
    file = str(output.path) if output.path else None
    drafted = Drafted(result.name, result.model, result.revision, result.assumed, result.look, file, result.text)
    return show_results("draft", output.shape, [(result.model, drafted)], lambda shown: _show_draft(result, shown.file))


def report_headers(watch: Watch, model: str, done: int, total: int) -> None:
    """Report how many files of a model's weights have been read."""
    text = f"headers of its weights: {done} of {total}"
    watch(ProgressEvent(model, "preparing", text, percent=100 * done // total))


def open_repository(
    model: str, hub: str, token: SecretRef | None, revision: str = "main"
) -> HubRepository | ModelFolder:
    """Return the repository or folder that the user named. Sends no request. Raises NotListed, and as `from_path`."""
    if is_folder(model):
        return ModelFolder.from_path(model)
    return HubRepository(model, revision, hub.rstrip("/"), token.resolve() if token else None)


def _show_draft(result: Draft, file: str | None) -> None:
    if file is None:
        click.echo(result.text, nl=False)
        return
    where = f" at {result.revision[:12]}" if result.revision else ""
    say(f"Written to {file}: {result.model}{where}, served as {result.name}")
    for each in result.assumed:
        say(f"Assumed: {each}", hang=2)
    for each in result.look:
        say(f"Look: {each}", hang=2)
    show_next(("assess", "HOST", "--workload", file))
