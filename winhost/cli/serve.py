"""winhost serve: how models are served on a target."""

from pathlib import Path

import click

from winhost.cli.groups import WinhostGroup
from winhost.cli.outputs import Output, answers


@click.group(cls=WinhostGroup)
def serve() -> None:
    """Serve models on a target: with which settings, and why."""


# Said twice, here and in winhost.serving, so that --help need not load it.
@serve.command()
@click.argument("facts", metavar="FACTS", required=False, type=click.Path(path_type=Path))
@click.option("--target", "facts_file", type=click.Path(path_type=Path), help="The same as FACTS.")
@click.option("--workload", "workload_file", type=click.Path(path_type=Path), required=True, help="What is served.")
@click.option(
    "--profile",
    "named",
    type=click.Choice(("wsl2", "wsl2-no-sleep")),
    help="This one for every model. Default: wsl2, and wsl2-no-sleep where sleeping is not safe.",
)
@click.option(
    "--read-speed",
    type=click.IntRange(1, 1_000_000),
    default=2400,
    show_default=True,
    metavar="MB/S",
    help="Of the disk that the weights are on; for the time that is lost without sleep.",
)
@click.option("--explain", "everything", is_flag=True, help="Show each line's reason, versions and evidence.")
@answers()
def profile(
    facts: Path | None,
    facts_file: Path | None,
    workload_file: Path,
    named: str | None,
    read_speed: int,
    everything: bool,
    output: Output,
) -> int:
    """Print the settings of vLLM for each model, ready to copy, with the reason of each line.

    FACTS are those of the host, as a file or as a folder with no others. For WSL 2; those for other targets do not
    exist yet. Changes nothing.
    """
    from winhost.cli.answers import Profiled
    from winhost.cli.envelope import show_results
    from winhost.cli.named_files import facts_file as meant
    from winhost.cli.show_profile import show_serving
    from winhost.model.workloadfile import load_workload
    from winhost.resources.factsfile import read_facts
    from winhost.resources.host import HostFacts
    from winhost.serving.choice import serving

    file = meant(facts, facts_file, "--target")
    if file is None:
        raise click.UsageError("no facts are named; winhost detect HOST -o FOLDER writes them")
    found = serving(HostFacts(read_facts(file)), load_workload(workload_file), named, read_speed)
    show_results("profile", output.shape, [(found.host, Profiled.of(found))], lambda _: show_serving(found, everything))
    return 0
