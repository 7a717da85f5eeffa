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

from winhost.cli.models.models import named_repository, tell_headers
from winhost.cli.output import say, with_fleet
from winhost.cli.plan.commands import UpOptions
from winhost.cli.plan.stack import PlannedStack
from winhost.cli.plan.stack_parts import IMAGE, pin_engine_image
from winhost.cli.terminal import columns
from winhost.cli.watch import watching
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.hub.catalogue import NEAREST, catalogue, named, near_names
from winhost.hub.draft import Planned, draft
from winhost.hub.repositories import HUB, HubRepository, NotListed, is_model_name
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
    fitting,
    plan_of,
    serving_variants,
    workload_of,
)
from winhost.serving.vllm_options import seen_versions
from winhost.sizing.budget import budget

TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
_LISTED = 5


@dataclass(frozen=True)
class Choice:
    """The chosen model. model: its id or folder; text: of the workload file; about: its format and plan, for people;
    memory: on each of its GPUs; others: ids that fit as well, best first; look: what somebody should know about it.
    """

    model: str
    text: str
    about: str
    memory: Bytes | None = None
    others: tuple[str, ...] = ()
    look: tuple[str, ...] = ()


def choose(facts: Facts, path: str, model: str | None, hub: str | None, file: Path, *, asks: bool) -> Choice:
    """Choose a model and write the workload file. path: the path that serves it; asks: somebody can choose among
    several. Raises RefusedError (NothingFits), and as the hub does.
    """
    token = SecretRef("env", TOKEN) if os.environ.get(TOKEN) else None
    at = (hub or HUB).rstrip("/")
    if model is None:
        found = fitting(facts, path, token=token is not None)
        if not found:
            here = visible(facts.host)
            hint = f"What each lacks: winhost models show {here} --all\nOr name another model: winhost up ORG/NAME"
            raise _nothing_fits(facts.host, f"no model of the catalogue fits the GPUs of {here} by {path}", hint)
        taken = _asked(facts.host, found) if asks and len(found) > 1 else found[0]
        choice = _from_catalogue(taken, found, at, token)
    elif listed := _listed(facts, path, model):
        choice = _from_catalogue(listed, (), at, token)
    elif is_folder(model) or is_model_name(model):
        choice = _drafted(facts, path, model, at, token, file)
    else:
        raise _not_a_model(facts, path, model)
    write_whole(file, [choice.text])
    return choice


def _nothing_fits(host: str, what: str, hint: str) -> RefusedError:
    return RefusedError("NothingFits", what=what, meaning="Nothing was changed.", hint=hint, host=host)


def _not_a_model(facts: Facts, path: str, model: str) -> UsageError:
    """Make the error for an incomplete name, with models that fit and contain it, or have a similar name."""
    fit = [each.entry.id for each in fitting(facts, path) if model.lower() in each.entry.id.lower()]
    meant = fit[:NEAREST] or near_names(model, catalogue().entries)
    hint = [f"Did you mean {' or '.join(meant)}?"] if meant else []
    if Path(model).exists():
        hint.append(f"What lies here under this name is written ./{visible(model)}")
    return UsageError(
        "NotAModel",
        what=f"{visible(model[:200])} is not the whole name of a model, which is ORG/NAME",
        meaning="Nothing was changed.",
        hint="\n".join((*hint, f"All that fit: winhost models show {visible(facts.host)}")),
        host=facts.host,
    )


def _asked(host: str, found: Sequence[Candidate]) -> Candidate:
    shown = found[:_LISTED]
    say(f"Models that fit {host}, best first: stored, tokens x requests, download, memory of each GPU", err=True)
    longest = max(len(each.entry.id) for each in shown)
    rows = []
    for number, each in enumerate(shown, start=1):
        memory = f"{each.memory / GiB:.0f} GiB" if each.memory else "not known"
        about = f"{each.entry.stored}, {each.context // 1024}k x {each.sequences}, {gb(each.download)}, {memory}"
        rows.append((f" {number} {each.entry.id:<{longest}}", about))
    narrow = max(len(f"{head}  {about}") for head, about in rows) > (columns(sys.stderr) or sys.maxsize)
    for head, about in rows:
        for text in (head.rstrip(), f"     {about}") if narrow else (f"{head}  {about}",):
            say(text, err=True)
    say(with_fleet(f"All of them: winhost models show {host}"), err=True)
    number = click.prompt("Which one?", default=1, type=click.IntRange(1, len(shown)), err=True)
    return shown[number - 1]


def gb(size: Bytes) -> str:
    """Write a size in the units of hubs: `5.2 GB`."""
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e6:,.1f} MB" if size >= 5e4 else f"{size:,} bytes"


def _listed(facts: Facts, path: str, model: str) -> Candidate | None:
    """Plan a model of the catalogue for this host. A name that `winhost models` shows may mean several."""
    entries = catalogue().entries
    meant = [each for each in entries if each.id.lower() == model.lower()] or named(model, entries)
    found = fitting(facts, path, entries=meant, everything=True) if meant else ()
    if found and not found[0].possible:
        here, lacks = visible(facts.host), found[0].lacks
        why = "it needs more memory than the GPUs have" if lacks == "memory" else lacks or "assess refuses it"
        what = f"{found[0].entry.id} does not fit {here} by {path}: {why}"
        raise _nothing_fits(facts.host, what, f"What fits: winhost models show {here}")
    return found[0] if found else None


def _from_catalogue(taken: Candidate, found: Sequence[Candidate], hub: str, token: SecretRef | None) -> Choice:
    with watching(reads=True) as watch, watch.at(taken.entry.id, "asking the hub"):
        needed = token if taken.entry.gated else None
        revision = HubRepository(taken.entry.id, "main", hub, needed.resolve() if needed else None).about()["sha"]
    others = tuple(each.entry.id for each in found if each is not taken)
    text = taken.workload_text(str(revision), needed)
    about = f"{taken.entry.stored}, {taken.context:,} tokens x {taken.sequences}"
    return Choice(taken.entry.id, text, about, taken.memory, others)


def _drafted(facts: Facts, path: str, model: str, hub: str, token: SecretRef | None, file: Path) -> Choice:
    folder = is_folder(model)
    try:
        repository = named_repository(model, hub, token)
        with watching(reads=True) as watch, watch.at(model, "reading the folder" if folder else "asking the hub"):
            tell = partial(tell_headers, watch, model)
            made = draft(repository, token, tell)
            write_whole(file, [made.text])
            (drafted,) = load_workload(file).models
            smaller = _that_fits(next(serving_variants(facts, path), None), drafted)
            if smaller is not None:
                made = draft(repository, token, tell, smaller)
    except WinhostError as error:
        if not folder and Path(model).exists():  # ORG/NAME is of a hub, whatever lies here
            error.hint = f"{error.hint}\nWhat lies here under this name is written ./{visible(model)}"
        raise
    planned = smaller or Planned(drafted.context or 0, drafted.sequences, drafted.parallel.tensor)
    about = f"{drafted.quantization or drafted.dtype}, {planned.context:,} tokens x {planned.sequences}"
    return Choice(made.model, made.text, about, look=made.look)


def _that_fits(variant: ServingVariant | None, model: Model) -> Planned | None:
    """Find a shorter context, fewer sequences or more GPUs if the draft does not fit. Returns None if it does, or if
    nothing would: then the plan says why.
    """
    if variant is None or model.context is None or budget(workload_of(model), variant.memory).fits:
        return None
    sizes = [size for size in TENSOR if size <= len(variant.memory.gpus)]
    contexts = [each for each in CONTEXTS if each <= model.context] or [model.context]
    found = plan_of(model, sizes, contexts, lambda tried: budget(workload_of(tried), variant.memory))
    if found is None:
        return None
    planned, _ = found
    return Planned(planned.context or 0, planned.sequences, planned.parallel.tensor)


_OF_SERVERS = ("NotListed", "NotResolved", "DownloadFailed")


Lacking = tuple[str, str, tuple[str, ...]]
"""A thing that is lacking, how it is named otherwise, and the options for that."""


def without_internet(error: WinhostError, host: str, path: str, asked: UpOptions) -> WinhostError:
    """Replace an error about a server that cannot be reached by one that lists all such servers."""
    away = error.code in _OF_SERVERS and not (isinstance(error, NotListed) and error.reached)
    lacking = [*_lacking(path, asked)] if away else []
    if not lacking:
        return error
    listed = [f"{number}. {what}. {instead}" for number, (what, instead, _) in enumerate(lacking, 1)]
    servers = "a server" if len(lacking) == 1 else f"{len(lacking)} servers"
    proxy = "Nothing was changed. Where a proxy leads to the internet, set HTTPS_PROXY. Otherwise:"
    return WinhostError(
        "NoInternet",
        what=f"this computer does not reach {servers} that winhost up needs",
        meaning="\n".join((proxy, *listed)),
        hint=f"All of it: {asked.command(*(word for *_, words in lacking for word in words), *asked.answered)}",
        host=host,
    )


def _lacking(path: str, asked: UpOptions) -> Iterator[Lacking]:
    """Ask the hub, the registry of the engine and the server of disk images, as far as each is needed."""
    model, options = asked.model, asked.stack
    if model is None or not is_folder(model):
        hub = (options.hub or HUB).rstrip("/")
        try:
            HubRepository(model or catalogue().entries[0].id, "main", hub, None).about()
        except NotListed as error:
            if not error.reached:
                folder = "" if path_of(path) == "dda" else ", or a folder with the model in place of its name"
                what = f"{visible(model or 'A model')}: {visible(hub)} cannot be reached"
                yield what, f"Name another hub that has it: --hub URL{folder}", ("--hub", "URL")
    if not (options.engine_archive or options.engine_program or options.engine_lock or options.digest):
        name = ImageName.parse(options.engine_image or f"{IMAGE}:v{seen_versions()[-1]}")
        try:
            pin_engine_image(name)
        except WinhostError as error:
            instead = (
                "Name an image by its digest, in a registry that the Linux reaches: --engine-image and --digest, or a "
                "file of docker save: --engine-archive FILE"
            )
            yield error.what, instead, ("--engine-image", str(name), "--digest", "sha256:DIGEST")
    said = dict(each.partition("=")[::2] for each in asked.settings)
    usual = VmImage()
    image, mirror = said.get("new_vm.image.name", usual.name), said.get("new_vm.image.mirror", usual.mirror)
    if path_of(path) == "dda" and "new_vm.vhdx.source" not in said and NAME.fullmatch(image):
        try:
            release_named(image, mirror)
        except WinhostError as error:
            instead = "Name a VHDX with a Linux that starts as a Generation 2 VM: --set new_vm.vhdx.source=./FILE.vhdx"
            yield error.what, instead, ("--set", "new_vm.vhdx.source=./FILE.vhdx")


_VM_NAME = "winhost"
_LEAST_MEMORY, _ENOUGH_MEMORY = 8 * GiB, 48 * GiB
_SYSTEM_DISK = 40 * GiB  # Ubuntu, the driver and Docker


def new_vm_settings(facts: HostFacts, path: str, joining: PlannedStack, said: Sequence[str]) -> tuple[str, ...]:
    """Choose settings of the new VM that the user did not name, from what this host has free."""
    if path_of(path) != "dda":
        return ()
    taken: Collection[str] = ()
    with suppress(MissingFact):  # without the Hyper-V role there are no VMs
        taken = {str(vm.state.name).lower() for vm in facts.vms}
    names = (_VM_NAME, *(f"{_VM_NAME}-{number}" for number in range(2, 100)))
    threads = 8
    with suppress(MissingFact):
        threads = sum(each.state.threads for each in facts.all(Processor))
    # At most half of what is free: VMs that start by themselves need memory, too. Weights load file by file.
    memory = max(_LEAST_MEMORY, min(_ENOUGH_MEMORY, facts.memory.free // 2 // GiB * GiB))
    parts = joining.parts
    models = sum(int(line.split(" ")[1]) for files in parts.files.values() for line in files["files"])
    image = 0 if parts.own_program else 3 * (parts.image.bytes or 10 * GiB)  # it unpacks to three times what is sent
    disk = -(-(_SYSTEM_DISK + models * 5 // 4 + image) // GiB)
    chosen = {
        "new_vm.name": next(name for name in names if name not in taken),
        "new_vm.cpus": str(max(2, min(threads // 2, 64))),
        "new_vm.memory": f"{memory // GiB}GiB",
        "new_vm.disk": f"{disk}GiB",
        "new_vm.guest.user": "winhost",
    }
    named = {setting.partition("=")[0] for setting in said}
    return tuple(f"{name}={value}" for name, value in chosen.items() if name not in named)
