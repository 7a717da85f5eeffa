"""winhost render kubernetes: what serves a workload, as manifests for a cluster of one's own."""

from pathlib import Path

import click

from winhost.cli.cluster_options import cluster_words
from winhost.cli.cluster_parts import check_cluster_words, check_images, cluster_request, with_cluster_key
from winhost.cli.foreign_errors import Faults
from winhost.cli.outputs import Output
from winhost.cli.render_compose import Rendered, machine, show_rendered, write_folder
from winhost.cli.stack_options import StackWords, stack_words
from winhost.cli.stack_parts import StackParts, show_made_keys
from winhost.cluster.rendering import folder, rendered, stream
from winhost.model.units import Bytes


def kubernetes(
    workload: Path,
    facts_file: Path | None,
    gpus: str | None,
    memory: Bytes | None,
    path: str | None,
    force: bool,
    output: Output,
) -> int:
    """Print all that serves WORKLOAD as manifests for a cluster."""
    faults, words = Faults(), cluster_words()
    facts = faults.of(lambda: machine(facts_file, gpus, memory))
    parts = StackParts(stack_words(workload) or StackWords(workload), in_cluster=True)
    parts.check(faults)
    check_cluster_words(parts, words, faults)
    parts.check_allowed(facts, faults)
    check_images(parts, words, faults)
    faults.refuse()
    assert facts is not None
    parts = with_cluster_key(parts, words, facts.host)
    try:
        made = rendered(facts, cluster_request(parts, words, facts, path))
    except ValueError as wrong:
        raise click.UsageError(str(wrong)) from None
    if output.path is not None:
        write_folder(output.path, folder(made), force)
    place = None if output.path is None else str(output.path)
    show_rendered(Rendered(facts.host, place, made.notes, stream(made)), output)
    show_made_keys(parts.made_keys, output.shape)
    return 0
