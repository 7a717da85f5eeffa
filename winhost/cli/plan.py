"""winhost plan: what would change."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click

from winhost.cli.options import Size, fleet_option, json_option
from winhost.model.errors import UsageFault, visible


@click.command()
@click.argument("host", required=False)
@click.option("--facts", "facts_file", type=click.Path(path_type=Path), help="Plan from this facts file, offline.")
@click.option("--path", default="dda", show_default=True, help="The way to serve.")
@click.option("--vm", help="The VM that gets the cards, by name or GUID. Needed where there are several.")
@click.option("--card", "cards", multiple=True, help="A card, by name or location path. Default: all that can go.")
@click.option("--high", type=Size(), help="High MMIO window, as 64GiB. Default: computed from the cards' BARs.")
@click.option("--low", type=Size(), help="Low MMIO window. Default: computed.")
@click.option(
    "--power",
    type=click.Choice(["as-found", "running", "off"]),
    default="as-found",
    show_default=True,
    help="How the VM ends.",
)
@click.option("--playbook", type=click.Path(path_type=Path), help="Your copy of the path's playbook.")
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the path, as network=nat.")
@click.option("--allow-unverified", is_flag=True, help="Plan although something could not be read or is unproven.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan to this file.")
@fleet_option
@json_option
def plan(
    host: str | None,
    facts_file: Path | None,
    path: str,
    vm: str | None,
    cards: tuple[str, ...],
    high: int | None,
    low: int | None,
    power: Literal["as-found", "running", "off"],
    playbook: Path | None,
    settings: tuple[str, ...],
    allow_unverified: bool,
    output: Path | None,
    fleet_file: Path | None,
    as_json: bool,
) -> int:
    """Write down what would change on a host, and how it is taken back.

    Needs a HOST or --facts. Changes nothing. Exit 3 when the path is refused here.
    """
    from winhost.cli.output import print_json
    from winhost.cli.reach import read_one
    from winhost.cli.show_plan import show_plan
    from winhost.engine import sending
    from winhost.engine.planning import make_plan
    from winhost.model.documents import write_document
    from winhost.model.plan import Wish
    from winhost.resources.host import HostFacts

    wish = Wish(path, _playbook(path, playbook, settings), vm, cards, low, high, power, allow_unverified)
    facts = read_one(host, facts_file, fleet_file)
    made = make_plan(HostFacts(facts), wish)
    sending.check(made.steps, Path())
    if output is not None:
        output.write_text(write_document(made), encoding="utf-8")
    if as_json:
        print_json(made)
    else:
        show_plan(made, output)
    return 0


def _playbook(path: str, chosen: Path | None, settings: tuple[str, ...]) -> "dict[str, object]":
    from winhost.model.shipped import shipped
    from winhost.paths.playbook import faults_of, read_playbook

    known = {file.stem: file for file in shipped("playbooks").glob("*.yaml")}
    if path not in known:
        raise NoPlaybook(path, tuple(sorted(known)))
    playbook = read_playbook(chosen or known[path])
    if playbook.path != path:
        raise OtherPath(str(chosen), playbook.path, path)
    content = playbook.model_dump(by_alias=True, mode="json")
    for setting in settings:
        _decide(content["settings"], setting)
    if settings and (faults := faults_of(content)):
        raise click.BadParameter("; ".join(map(visible, faults)), param_hint="--set")
    return content


def _decide(settings: "dict[str, object]", setting: str) -> None:
    """`bridge.switch=lan` into the settings: names by dots, the value as YAML has it."""
    import yaml

    name, equals, value = setting.partition("=")
    if not equals or not all(name.split(".")):
        raise click.BadParameter(f"{visible(setting)!r} is not NAME=VALUE", param_hint="--set")
    *groups, last = name.split(".")
    for group in groups:
        inner = settings.setdefault(group, {})
        if not isinstance(inner, dict):
            raise click.BadParameter(f"{visible(name)}: {group} is no group of settings", param_hint="--set")
        settings = inner
    try:
        meant = yaml.safe_load(value)
    except yaml.YAMLError:
        meant = value
    # No setting is a broken number, but versions look like one: 2.10 is not 2.1.
    settings[last] = value if isinstance(meant, float) else meant


@dataclass(eq=False)
class OtherPath(UsageFault):
    """A playbook for another path than the one that is asked for."""

    file: str
    found: str
    asked: str

    @property
    def what(self) -> str:
        return f"{visible(self.file)} is a playbook for {visible(self.found)}, not for {self.asked}"


@dataclass(eq=False)
class NoPlaybook(UsageFault):
    """A path that winhost judges but cannot yet plan, or no path at all."""

    path: str
    known: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"winhost cannot plan '{visible(self.path)}' yet; it can plan: {', '.join(self.known)}"

    @property
    def hint(self) -> str:
        return "winhost assess says which paths a host supports"
