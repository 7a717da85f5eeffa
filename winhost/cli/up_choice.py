"""Choose the model that `winhost up` serves: the one that fits a host best, one that the user names, or one in a
folder.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from winhost.cli.fitting import CONTEXTS, TENSOR, Candidate, Way, fitting, plan_of, ways, workload_of
from winhost.cli.line_breaks import columns
from winhost.cli.output import say
from winhost.cli.watch import Watch, watching
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.hub.catalogue import NEAREST, catalogue, named, near_names
from winhost.hub.draft import Planned, draft
from winhost.hub.hub_repository import HUB, HubRepository, is_model_name
from winhost.hub.model_folder import ModelFolder
from winhost.model.errors import RefusedError, UsageError, WinhostError, visible
from winhost.model.facts import Facts
from winhost.model.files import write_whole
from winhost.model.secrets import SecretRef
from winhost.model.units import Bytes, GiB
from winhost.model.workload import Model, is_folder
from winhost.model.workloadfile import load_workload
from winhost.sizing.budget import budget

TOKEN = "HF_TOKEN"  # noqa: S105 - the name of a variable
_LISTED = 5


@dataclass(frozen=True)
class Choice:
    """model: its id or folder; text: of the workload file; about: how it is stored and planned, for people; memory: on
    each of its GPUs; others: ids that fit as well, best first; look: what the hub says that somebody should know.
    """

    model: str
    text: str
    about: str
    memory: Bytes | None = None
    others: tuple[str, ...] = ()
    look: tuple[str, ...] = ()


def choose(facts: Facts, path: str, model: str | None, hub: str | None, file: Path, *, asks: bool) -> Choice:
    """Writes the workload file. path: by which it is served; asks: whether somebody can choose among several. Raises
    RefusedError (NothingFits), and as the hub does.
    """
    choice = _chosen(facts, path, model, hub, file, asks=asks)
    write_whole(file, [choice.text])
    return choice


def _chosen(facts: Facts, path: str, model: str | None, hub: str | None, file: Path, *, asks: bool) -> Choice:
    token = SecretRef("env", TOKEN) if os.environ.get(TOKEN) else None
    place = (hub or HUB).rstrip("/")
    if model is None:
        found = fitting(facts, path, token=token is not None)
        if not found:
            here = visible(facts.host)
            hint = f"What each lacks: winhost models {here} --all\nOr name another model: winhost up ORG/NAME"
            raise _nothing_fits(facts.host, f"no model of the catalogue fits the GPUs of {here} by {path}", hint)
        taken = _asked(facts.host, found) if asks and len(found) > 1 else found[0]
        return _from_catalogue(taken, found, place, token)
    listed = _listed(facts, path, model)
    if listed is not None:
        return _from_catalogue(listed, (), place, token)
    if not is_folder(model) and not is_model_name(model):
        raise _not_a_model(facts, path, model)
    return _drafted(facts, path, model, place, token, file)


def _nothing_fits(host: str, what: str, hint: str) -> RefusedError:
    return RefusedError("NothingFits", what=what, meaning="Nothing was changed.", hint=hint, host=host)


def _not_a_model(facts: Facts, path: str, model: str) -> UsageError:
    """Only whole names are asked of a hub. Those are meant that fit and have it in them, or are spelled alike."""
    fit = [each.entry.id for each in fitting(facts, path) if model.lower() in each.entry.id.lower()]
    meant = fit[:NEAREST] or near_names(model, catalogue().entries)
    hint = [f"Did you mean {' or '.join(meant)}?"] if meant else []
    if Path(model).exists():
        hint.append(f"What lies here under this name is written ./{visible(model)}")
    return UsageError(
        "NotAModel",
        what=f"{visible(model[:200])} is not the whole name of a model, which is ORG/NAME",
        meaning="Nothing was changed.",
        hint="\n".join((*hint, f"All that fit: winhost models {visible(facts.host)}")),
        host=facts.host,
    )


def _asked(host: str, found: Sequence[Candidate]) -> Candidate:
    shown = found[:_LISTED]
    say(f"Models that fit {host}, best first: stored, tokens x requests, download, memory of each GPU", err=True)
    longest = max(len(each.entry.id) for each in shown)
    rows = [(f" {number} {each.entry.id:<{longest}}", _in_short(each)) for number, each in enumerate(shown, start=1)]
    narrow = max(len(f"{head}  {about}") for head, about in rows) > (columns(sys.stderr) or sys.maxsize)
    for head, about in rows:
        for text in (head.rstrip(), f"     {about}") if narrow else (f"{head}  {about}",):
            say(text, err=True)
    say(f"All of them: winhost models {host}", err=True)
    number = click.prompt("Which one?", default=1, type=click.IntRange(1, len(shown)), err=True)
    return shown[number - 1]


def _in_short(each: Candidate) -> str:
    memory = f"{each.memory / GiB:.0f} GiB" if each.memory else "not known"
    return f"{each.entry.stored}, {each.context // 1024}k x {each.sequences}, {gb(each.download)}, {memory}"


def _stored(each: Candidate) -> str:
    return f"{each.entry.stored}, {each.context:,} tokens x {each.sequences}"


def gb(size: Bytes) -> str:
    """A size in the units of hubs: `5.2 GB`."""
    return f"{size / 1e9:,.1f} GB" if size >= 5e7 else f"{size / 1e6:,.1f} MB" if size >= 5e4 else f"{size:,} bytes"


def _listed(facts: Facts, path: str, model: str) -> Candidate | None:
    """A model of the catalogue, planned for this host. A name that `winhost models` shows may mean several."""
    entries = catalogue().entries
    meant = [each for each in entries if each.id.lower() == model.lower()] or named(model, entries)
    found = fitting(facts, path, entries=meant, everything=True) if meant else ()
    if found and not found[0].possible:
        here, lacks = visible(facts.host), found[0].lacks
        why = "it needs more memory than the GPUs have" if lacks == "memory" else lacks or "assess refuses it"
        what = f"{found[0].entry.id} does not fit {here} by {path}: {why}"
        raise _nothing_fits(facts.host, what, f"What fits: winhost models {here}")
    return found[0] if found else None


def _from_catalogue(taken: Candidate, found: Sequence[Candidate], hub: str, token: SecretRef | None) -> Choice:
    with watching(reads=True) as watch, watch.at(taken.entry.id, "asking the hub"):
        needed = token if taken.entry.gated else None
        revision = HubRepository(taken.entry.id, "main", hub, needed.resolve() if needed else None).about()["sha"]
    others = tuple(each.entry.id for each in found if each is not taken)
    text = taken.workload_text(str(revision), needed)
    return Choice(taken.entry.id, text, _stored(taken), taken.memory, others)


def _drafted(facts: Facts, path: str, model: str, hub: str, token: SecretRef | None, file: Path) -> Choice:
    try:
        return _read(facts, path, model, hub, token, file)
    except WinhostError as error:
        if not is_folder(model) and Path(model).exists():  # ORG/NAME is of a hub, whatever lies here
            error.hint = f"{error.hint}\nWhat lies here under this name is written ./{visible(model)}"
        raise


def _read(facts: Facts, path: str, model: str, hub: str, token: SecretRef | None, file: Path) -> Choice:
    folder = is_folder(model)
    repository: HubRepository | ModelFolder
    repository = (
        ModelFolder.at_path(model) if folder else HubRepository(model, "main", hub, token.resolve() if token else None)
    )
    with watching(reads=True) as watch, watch.at(model, "reading the folder" if folder else "asking the hub"):
        made = draft(repository, token, lambda done, of: _tell(watch, model, done, of))
        write_whole(file, [made.text])
        (drafted,) = load_workload(file).models
        smaller = _that_fits(next(ways(facts, path), None), drafted)
        if smaller is not None:
            made = draft(repository, token, lambda done, of: _tell(watch, model, done, of), smaller)
    planned = smaller or Planned(drafted.context or 0, drafted.sequences, drafted.parallel.tensor)
    about = f"{drafted.quantization or drafted.dtype}, {planned.context:,} tokens x {planned.sequences}"
    return Choice(made.model, made.text, about, look=made.look)


def _that_fits(way: Way | None, model: Model) -> Planned | None:
    """A shorter context, fewer sequences or more GPUs, where the draft does not fit; None where it does, or nothing
    would: then the plan says why.
    """
    if way is None or model.context is None or budget(workload_of(model), way.memory).fits:
        return None
    sizes = [size for size in TENSOR if size <= len(way.memory.cards)]
    contexts = [each for each in CONTEXTS if each <= model.context] or [model.context]
    found = plan_of(model, sizes, contexts, lambda tried: budget(workload_of(tried), way.memory))
    if found is None:
        return None
    planned, _ = found
    return Planned(planned.context or 0, planned.sequences, planned.parallel.tensor)


def _tell(watch: Watch, model: str, done: int, of: int) -> None:
    text = f"headers of its weights: {done} of {of}"
    watch(ProgressEvent(model, "preparing", text, percent=100 * done // of))
