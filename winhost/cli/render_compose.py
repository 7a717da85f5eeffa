"""winhost render compose: what serves a workload, as a compose project for a deployment of one's own."""

from pathlib import Path

import click

from winhost import __version__
from winhost.cli.envelope import show_results
from winhost.cli.foreign_errors import Faults, from_os_error
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.output import say, write_file
from winhost.cli.outputs import Output
from winhost.cli.stack_options import StackWords, stack_words
from winhost.cli.stack_parts import BY_DIGEST, StackParts, show_made_keys
from winhost.compat.stated import stated_linux
from winhost.core.dataclass import dataclass
from winhost.model.errors import visible
from winhost.model.units import Bytes
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.serving.compose_project import ComposeRequest, compose_project


@dataclass(frozen=True)
class Rendered:
    """host: whose facts it is for, or the proxy; file: what was written, if anything; text: what is in it."""

    host: str
    file: str | None
    notes: tuple[str, ...]
    text: str


def compose(
    workload: Path,
    facts_file: Path | None,
    gpus: str | None,
    memory: Bytes | None,
    path: str | None,
    force: bool,
    output: Output,
) -> int:
    """Print all that serves WORKLOAD as one compose project: engines, models and the gateway."""
    faults = Faults()
    facts = faults.of(lambda: machine(facts_file, gpus, memory))
    parts = StackParts(stack_words(workload) or StackWords(workload))
    parts.check(faults)
    faults.of(lambda: parts.tls)
    faults.of(lambda: parts.listen)
    image = faults.of(lambda: parts.image, BY_DIGEST)
    faults.refuse()
    assert facts is not None
    assert image is not None
    parts = parts.with_key_of(facts.host)
    request = ComposeRequest(
        parts.workload,
        image.saved.name if image.saved else image.pinned,
        parts.keys,
        parts.listen,
        parts.tls,
        parts.words.plain_http,
        path,
        parts.words.hub,
    )
    try:
        made = compose_project(facts, request, __version__)
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    show_rendered(Rendered(made.host, written(output.path, made.text, force), made.notes, made.text), output)
    show_made_keys(parts.made_keys, output.shape)
    return 0


def machine(facts_file: Path | None, gpus: str | None, memory: Bytes | None) -> HostFacts:
    """The facts of a file, or what is said instead. Raises UsageError."""
    file = named_facts(facts_file, None, "--facts")
    if file is not None:
        if gpus or memory:
            raise click.UsageError("--gpus and --memory stand in for --facts: name the one or the others")
        return HostFacts(read_facts(file))
    if gpus is None or memory is None:
        raise click.UsageError(
            "which machine is to serve? Name --facts FILE, which winhost detect HOST -o FOLDER writes, or "
            "--gpus 2x48GiB --memory 256GiB"
        )
    try:
        return stated_linux(gpus, memory)
    except ValueError as wrong:
        raise click.BadParameter(str(wrong), param_hint="'--gpus'") from None


def written(place: Path | None, text: str, force: bool) -> str | None:
    if place is None:
        return None
    try:
        write_file(place, text, "rendered", force)
    except OSError as error:
        raise from_os_error(error) from error
    return str(place)


def write_folder(place: Path, files: dict[str, str], force: bool) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_file(place / name, text, "rendered", force)
    except OSError as error:
        raise from_os_error(error) from error


def show_rendered(rendered: Rendered, output: Output) -> None:
    show_results("rendered", output.shape, [(rendered.host, rendered)], _show)


def _show(rendered: Rendered) -> None:
    if rendered.file is None:
        click.echo(rendered.text, nl=False)
    else:
        say(f"Written to {visible(rendered.file)}")
    for each in rendered.notes:
        say(f"note: {each}", hang=2, err=True)
