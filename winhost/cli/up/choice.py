"""The choices of `winhost up`: a model, and the VM that gets the GPUs. If servers on the internet cannot be reached, it
lists all that has to be named instead.
"""

import os
import sys
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import click

from winhost.cli.models.models import open_repository, report_headers
from winhost.cli.output import say, with_fleet
from winhost.cli.plan.commands import UpOptions
from winhost.cli.plan.stack import PlannedStack
from winhost.cli.plan.stack_parts import IMAGE, pin_engine_image
from winhost.cli.terminal import terminal_width
from winhost.cli.watch import show_progress
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hub.catalogue import MAX_SUGGESTIONS, catalogue, named, similar_names
from winhost.hub.draft import Planned, draft
from winhost.hub.repositories import HUB, HubRepository, ListingError, is_model_name
from winhost.images.image_registry import ImageName
from winhost.images.ubuntu_releases import NAME, release_named
from winhost.model.errors import RefusedError, UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.files import write_whole
from winhost.model.path import path_of
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, GiB
from winhost.model.workload import Model, is_folder
from winhost.model.workloadfile import load_workload
from winhost.paths.new_vm import VmImage
from winhost.resources.host import HostFacts
from winhost.resources.windows.read_only import Processor
from winhost.serving.fitting import (
    CONTEXTS,
    TENSOR,
    Candidate,
    ServingVariant,
    find_candidates,
    plan_of,
    serving_variants,
    workload_of,
)
from winhost.serving.vllm_options import seen_versions
from winhost.sizing.budget import budget

TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
_MAX_LISTED = 5


@dataclass(frozen=True)
class Choice:
    """The chosen model. model: its id or folder; text: the content of the workload file; description: its format,
    context and sequences, for people; memory: on each of its GPUs; others: ids that fit as well, best first; notes:
    what the user should know about it.
    """

    model: str
    text: str
    description: str
    memory: Bytes | None = None
    others: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def choose_model(facts: Facts, path: str, model: str | None, hub: str | None, file: Path, *, can_ask: bool) -> Choice:
    """Choose a model and write the workload file.

    path: the path that serves it; model: as the user named it, None for the best one of the catalogue; can_ask: the
    user can choose among several. Raises RefusedError (NothingFits), UsageError (NotAModel), and as the hub does.
    """
    token = SecretRef("env", TOKEN) if os.environ.get(TOKEN) else None
    hub_url = (hub or HUB).rstrip("/")
    if model is None:
        candidates = find_candidates(facts, path, token=token is not None)
        if not candidates:
            host_name = visible(facts.host)
            hint = f"What each lacks: winhost models show {host_name} --all\nOr name another model: winhost up ORG/NAME"
            raise _nothing_fits(facts.host, f"no model of the catalogue fits the GPUs of {host_name} by {path}", hint)
        candidate = _prompt_for_model(facts.host, candidates) if can_ask and len(candidates) > 1 else candidates[0]
        choice = _catalogue_choice(candidate, candidates, hub_url, token)
    elif entry := _find_in_catalogue(facts, path, model):
        choice = _catalogue_choice(entry, (), hub_url, token)
    elif is_folder(model) or is_model_name(model):
        choice = _draft_choice(facts, path, model, hub_url, token, file)
    else:
        raise _incomplete_name(facts, path, model)
    write_whole(file, [choice.text])
    return choice


def _nothing_fits(host: str, what: str, hint: str) -> RefusedError:
    return RefusedError("NothingFits", what=what, meaning="Nothing was changed.", hint=hint, host=host)


def _incomplete_name(facts: Facts, path: str, model: str) -> UsageError:
    """Return the error for an incomplete name, with models that fit and contain it, or have a similar name."""
    fitting_ids = [each.entry.id for each in find_candidates(facts, path) if model.lower() in each.entry.id.lower()]
    suggestions = fitting_ids[:MAX_SUGGESTIONS] or similar_names(model, catalogue().entries)
    hints = [f"Did you mean {' or '.join(suggestions)}?"] if suggestions else []
    if Path(model).exists():
        hints.append(f"To name the file or folder that is here, write ./{visible(model)}")
    return UsageError(
        "NotAModel",
        what=f"{visible(model[:200])} is not the whole name of a model, which is ORG/NAME",
        meaning="Nothing was changed.",
        hint="\n".join((*hints, f"All that fit: winhost models show {visible(facts.host)}")),
        host=facts.host,
    )


def _prompt_for_model(host: str, candidates: Sequence[Candidate]) -> Candidate:
    listed = candidates[:_MAX_LISTED]
    say(f"Models that fit {host}, best first: stored, tokens x requests, download, memory of each GPU", err=True)
    id_width = max(len(each.entry.id) for each in listed)
    rows = []
    for number, each in enumerate(listed, start=1):
        memory = f"{each.memory / GiB:.0f} GiB" if each.memory else "not known"
        details = (
            f"{each.entry.stored}, {each.context // 1024}k x {each.sequences}, {format_size(each.download)}, {memory}"
        )
        rows.append((f" {number} {each.entry.id:<{id_width}}", details))
    is_narrow = max(len(f"{name}  {details}") for name, details in rows) > (terminal_width(sys.stderr) or sys.maxsize)
    for name, details in rows:
        for text in (name.rstrip(), f"     {details}") if is_narrow else (f"{name}  {details}",):
            say(text, err=True)
    say(with_fleet(f"All of them: winhost models show {host}"), err=True)
    number = click.prompt("Which one?", default=1, type=click.IntRange(1, len(listed)), err=True)
    return listed[number - 1]


def format_size(size: Bytes) -> str:
    """Write a size in the units of hubs: `5.2 GB`."""
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e6:,.1f} MB" if size >= 5e4 else f"{size:,} bytes"


def _find_in_catalogue(facts: Facts, path: str, model: str) -> Candidate | None:
    """Return the model of the catalogue with this name, as it fits this host; None if the catalogue does not have it. A
    name that `winhost models` shows may mean several entries, of which the best is returned.

    Raises RefusedError (NothingFits).
    """
    entries = catalogue().entries
    named_entries = [each for each in entries if each.id.lower() == model.lower()] or named(model, entries)
    candidates = find_candidates(facts, path, entries=named_entries, everything=True) if named_entries else ()
    if candidates and not candidates[0].possible:
        host_name, problem = visible(facts.host), candidates[0].lacks
        reason = "it needs more memory than the GPUs have" if problem == "memory" else problem or "assess refuses it"
        what = f"{candidates[0].entry.id} does not fit {host_name} by {path}: {reason}"
        raise _nothing_fits(facts.host, what, f"What fits: winhost models show {host_name}")
    return candidates[0] if candidates else None


def _catalogue_choice(
    candidate: Candidate, candidates: Sequence[Candidate], hub: str, token: SecretRef | None
) -> Choice:
    model, required_token = candidate.entry.id, token if candidate.entry.gated else None
    with show_progress(read_only=True) as watch, watch.activity(model, "asking the hub"):
        secret = required_token.resolve() if required_token else None
        revision = HubRepository(model, "main", hub, secret).about()["sha"]
    others = tuple(each.entry.id for each in candidates if each is not candidate)
    text = candidate.workload_text(str(revision), required_token)
    description = f"{candidate.entry.stored}, {candidate.context:,} tokens x {candidate.sequences}"
    return Choice(model, text, description, candidate.memory, others)


def _draft_choice(facts: Facts, path: str, model: str, hub: str, token: SecretRef | None, file: Path) -> Choice:
    """Draft a workload from the model's own files, reduced so that it fits this host."""
    in_folder = is_folder(model)
    try:
        repository = open_repository(model, hub, token)
        with (
            show_progress(read_only=True) as watch,
            watch.activity(model, "reading the folder" if in_folder else "asking the hub"),
        ):
            report = partial(report_headers, watch, model)
            drafted = draft(repository, token, report)
            write_whole(file, [drafted.text])
            (served,) = load_workload(file).models
            reduced = _reduce_to_fit(next(serving_variants(facts, path), None), served)
            if reduced is not None:
                drafted = draft(repository, token, report, reduced)
    except WinhostError as error:
        if not in_folder and Path(model).exists():  # ORG/NAME means a hub, even if a file here has that name
            error.hint = f"{error.hint}\nTo name the file or folder that is here, write ./{visible(model)}"
        raise
    planned = reduced or Planned(served.context or 0, served.sequences, served.parallel.tensor)
    description = f"{served.quantization or served.dtype}, {planned.context:,} tokens x {planned.sequences}"
    return Choice(drafted.model, drafted.text, description, notes=drafted.look)


def _reduce_to_fit(variant: ServingVariant | None, model: Model) -> Planned | None:
    """Return a shorter context, fewer sequences or more GPUs with which a drafted model fits. Return None if the draft
    itself fits, or if nothing does: then the plan says why.
    """
    if variant is None or model.context is None or budget(workload_of(model), variant.memory).fits:
        return None
    sizes = [size for size in TENSOR if size <= len(variant.memory.gpus)]
    contexts = [each for each in CONTEXTS if each <= model.context] or [model.context]
    result = plan_of(model, sizes, contexts, lambda candidate: budget(workload_of(candidate), variant.memory))
    if result is None:
        return None
    planned, _ = result
    return Planned(planned.context or 0, planned.sequences, planned.parallel.tensor)


_SERVER_ERRORS = ("NotListed", "NotResolved", "DownloadFailed")


MissingSource = tuple[str, str, tuple[str, ...]]
"""The sentence about a missing download, the advice on how to do without it, and the options for that."""


def explain_unreachable_servers(error: WinhostError, host: str, path: str, request: UpOptions) -> WinhostError:
    """Return an error that lists all unreachable servers in place of an error about one of them; return any other error
    as it is.
    """
    is_unreachable = error.code in _SERVER_ERRORS and not (isinstance(error, ListingError) and error.reached)
    missing = [*_find_unreachable_servers(path, request)] if is_unreachable else []
    if not missing:
        return error
    lines = [f"{number}. {what}. {advice}" for number, (what, advice, _) in enumerate(missing, 1)]
    options = [option for *_, source_options in missing for option in source_options]
    servers = "a server" if len(missing) == 1 else f"{len(missing)} servers"
    proxy = "Nothing was changed. Where a proxy leads to the internet, set HTTPS_PROXY. Otherwise:"
    return WinhostError(
        "NoInternet",
        what=f"this computer does not reach {servers} that winhost up needs",
        meaning="\n".join((proxy, *lines)),
        hint=f"All of it: {request.command(*options, *request.answer_options)}",
        host=host,
    )


def _find_unreachable_servers(path: str, request: UpOptions) -> Iterator[MissingSource]:
    """Ask the hub, the registry of the engine and the server of disk images, if each is needed, and yield those that do
    not answer.
    """
    model, options = request.model, request.stack
    if model is None or not is_folder(model):
        hub = (options.hub or HUB).rstrip("/")
        try:
            HubRepository(model or catalogue().entries[0].id, "main", hub, None).about()
        except ListingError as error:
            if not error.reached:
                folder = "" if path_of(path) == "dda" else ", or a folder with the model in place of its name"
                what = f"{visible(model or 'A model')}: {visible(hub)} cannot be reached"
                yield what, f"Name another hub that has it: --hub URL{folder}", ("--hub", "URL")
    if not (options.engine_archive or options.engine_program or options.engine_lock or options.digest):
        name = ImageName.parse(options.engine_image or f"{IMAGE}:v{seen_versions()[-1]}")
        try:
            pin_engine_image(name)
        except WinhostError as error:
            advice = (
                "Name an image by its digest, in a registry that the Linux reaches: --engine-image and --digest, or a "
                "file of docker save: --engine-archive FILE"
            )
            yield error.what, advice, ("--engine-image", str(name), "--digest", "sha256:DIGEST")
    settings = dict(each.partition("=")[::2] for each in request.settings)
    defaults = VmImage()
    image = settings.get("new_vm.image.name", defaults.name)
    mirror = settings.get("new_vm.image.mirror", defaults.mirror)
    if path_of(path) == "dda" and "new_vm.vhdx.source" not in settings and NAME.fullmatch(image):
        try:
            release_named(image, mirror)
        except WinhostError as error:
            option = "new_vm.vhdx.source=./FILE.vhdx"
            advice = f"Name a VHDX with a Linux that starts as a Generation 2 VM: --set {option}"
            yield error.what, advice, ("--set", option)


_VM_NAME = "winhost"
_MIN_MEMORY, _MAX_MEMORY = 8 * GiB, 48 * GiB
_SYSTEM_DISK = 40 * GiB  # Ubuntu, the driver and Docker


def new_vm_settings(facts: HostFacts, path: str, stack: PlannedStack, settings: Sequence[str]) -> tuple[str, ...]:
    """Return the settings of the new VM that the user did not set, from the free memory, processors and names of the
    host. settings: those that the user set.
    """
    if path_of(path) != "dda":
        return ()
    used_names: Collection[str] = ()
    with suppress(MissingFact):  # without the Hyper-V role there are no VMs
        used_names = {str(vm.state.name).lower() for vm in facts.vms}
    names = (_VM_NAME, *(f"{_VM_NAME}-{number}" for number in range(2, 100)))
    threads = 8
    with suppress(MissingFact):
        threads = sum(each.state.threads for each in facts.all(Processor))
    # At most half of the free memory: VMs that start automatically need memory, too. Weights load file by file.
    memory = max(_MIN_MEMORY, min(_MAX_MEMORY, facts.memory.free // 2 // GiB * GiB))
    parts = stack.parts
    models = sum(int(line.split(" ")[1]) for files in parts.files.values() for line in files["files"])
    image = 0 if parts.own_program else 3 * (parts.image.bytes or 10 * GiB)  # unpacked, about three times the download
    disk = -(-(_SYSTEM_DISK + models * 5 // 4 + image) // GiB)
    defaults = {
        "new_vm.name": next(name for name in names if name not in used_names),
        "new_vm.cpus": str(max(2, min(threads // 2, 64))),
        "new_vm.memory": f"{memory // GiB}GiB",
        "new_vm.disk": f"{disk}GiB",
        "new_vm.guest.user": "winhost",
    }
    set_names = {setting.partition("=")[0] for setting in settings}
    return tuple(f"{name}={value}" for name, value in defaults.items() if name not in set_names)
