"""winhost workload: draft a workload from a model's own files on a hub."""

import click

from winhost.cli.envelope import show_results
from winhost.cli.errors import os_errors, secret_reference
from winhost.cli.output import say, show_next, write_file
from winhost.cli.outputs import Output
from winhost.cli.watch import watching
from winhost.core.dataclass import dataclass
from winhost.engine.progress import ProgressEvent
from winhost.hub.draft import SEQUENCES, Draft, Planned, draft
from winhost.hub.hub_repository import HubRepository, NotListed
from winhost.hub.model_folder import ModelFolder
from winhost.model.errors import UsageError, visible
from winhost.model.secrets import SecretRef
from winhost.model.workload import is_folder


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


def init(
    model: str,
    revision: str,
    token: str | None,
    hub: str,
    context: int | None,
    sequences: int | None,
    gpus: int | None,
    force: bool,
    output: Output,
) -> int:
    if context is None and (sequences or gpus):
        raise click.UsageError("--sequences and --gpus go with --context: winhost models show HOST names all three")
    reference = secret_reference(token, "'--token'")
    if output.path and output.path.exists() and not force:
        what = f"{visible(str(output.path))} is there already"
        raise UsageError("KeptAsItIs", what=what, hint="Name another file with -o, or write over it with --force")
    repository = named_repository(model, hub, reference, revision)
    planned = Planned(context, sequences or SEQUENCES, gpus or 1) if context else None
    with watching() as watch, watch.at(model, "reading the folder" if is_folder(model) else "asking the hub"):
        made = draft(
            repository,
            reference,
            lambda done, of: watch(
                ProgressEvent(model, "preparing", f"headers of its weights: {done} of {of}", percent=100 * done // of)
            ),
            planned,
        )
    if output.path:
        with os_errors():
            write_file(output.path, made.text, "workload", force)
    file = str(output.path) if output.path else None
    drafted = Drafted(made.name, made.model, made.revision, made.assumed, made.look, file, made.text)
    show_results("draft", output.shape, [(made.model, drafted)], lambda shown: _show(made, shown.file))
    return 0


def named_repository(
    model: str, hub: str, token: SecretRef | None, revision: str = "main"
) -> HubRepository | ModelFolder:
    """The model that a user named, before any request. Raises UsageError (NotListed, and as `at_path` does)."""
    if is_folder(model):
        return ModelFolder.at_path(model)
    try:
        return HubRepository(model, revision, hub.rstrip("/"), token.resolve() if token else None)
    except NotListed as wrong:
        raise UsageError(wrong.code, wrong.what, wrong.meaning, wrong.hint) from None


def _show(made: Draft, file: str | None) -> None:
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
