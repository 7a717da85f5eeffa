"""winhost plan: what would change."""

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from winhost.cli import completion
from winhost.cli.options import Size, assume_option, fleet_option, force_option, json_option
from winhost.model.errors import UsageFault, visible

if TYPE_CHECKING:
    from winhost.resources.stated import Statement


@click.command()
@click.argument("host", required=False, **completion.HOSTS)
@click.option("--facts", "facts_file", type=click.Path(path_type=Path), help="Plan from this facts file, offline.")
@click.option("--path", default="dda", show_default=True, help="The way to serve.", **completion.PATHS)
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
@assume_option
@click.option("--allow-unverified", is_flag=True, help="Plan although something could not be read or is unproven.")
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write the plan to this file.")
@force_option
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
    assumed: "tuple[Statement, ...]",
    allow_unverified: bool,
    output: Path | None,
    force: bool,
    fleet_file: Path | None,
    as_json: bool,
) -> int:
    """Write down what would change on a host, and how it is taken back.

    Needs a HOST or --facts. Changes nothing. Exit 3 when the path is refused here.
    """
    from winhost.cli.answers import Planned
    from winhost.cli.envelope import answer
    from winhost.cli.output import write_file
    from winhost.cli.reach import read_one
    from winhost.cli.show_plan import show_plan
    from winhost.engine import sending
    from winhost.engine.planning import make_plan
    from winhost.model.documents import write_document
    from winhost.model.plan import Wish
    from winhost.resources.host import HostFacts
    from winhost.resources.stated import stated

    wish = Wish(path, _playbook(path, playbook, settings), vm, cards, low, high, power, allow_unverified)
    if assumed and facts_file is None:
        raise click.BadParameter("goes with --facts: a host is asked, and is not told", param_hint="--assume")
    facts = stated(read_one(host, facts_file, fleet_file), assumed)
    made = replace(make_plan(HostFacts(facts), wish), made_at=datetime.now(UTC).isoformat(timespec="seconds"))
    sending.check(made.steps, Path())
    if output is not None:
        write_file(output, write_document(made), "plan", force)
    if as_json:
        file = str(output) if output else None
        answer("planning", [Planned(made.host, made.wish.path, made.variant, file, made)])
    else:
        show_plan(made, output)
    return 0


def _playbook(path: str, chosen: Path | None, settings: tuple[str, ...]) -> "dict[str, object]":
    from winhost.cli.show_verdicts import check_path
    from winhost.model.shipped import shipped
    from winhost.paths.playbook import read_playbook

    check_path(path)
    known = {file.stem: file for file in shipped("playbooks").glob("*.yaml")}
    if path not in known:
        raise NoPlaybook(path, tuple(sorted(known)))
    playbook = read_playbook(chosen or known[path])
    if playbook.path != path:
        raise OtherPath(str(chosen), playbook.path, path)
    return decided(path, playbook.model_dump(by_alias=True, mode="json"), settings)


def decided(path: str, content: "dict[str, Any]", settings: tuple[str, ...]) -> "dict[str, Any]":
    """A playbook's content with settings of `--set`. Raises BadParameter."""
    from winhost.paths.playbook import faults_of, spelled_out

    for setting in settings:
        _decide(path, content["settings"], setting)
        content["settings"] = spelled_out(path, content["settings"])
    if settings and (faults := faults_of(content)):
        raise click.BadParameter("; ".join(map(visible, faults)), param_hint="--set")
    return content


def _decide(path: str, settings: "dict[str, object]", setting: str) -> None:
    """`bridge.switch=lan` into the settings of a path, by the names between the dots."""
    from winhost.paths.public_key import refuse_private

    try:
        refuse_private(setting)  # before any message could show it
    except ValueError as refused:
        raise click.BadParameter(str(refused), param_hint="--set") from None
    name, equals, value = setting.partition("=")
    if not equals or not all(name.split(".")):
        raise click.BadParameter(f"{visible(setting)!r} is not NAME=VALUE", param_hint="--set")
    if not value.strip():  # of a file that is not there, in $(cat …)
        raise click.BadParameter(
            f"{visible(name)} is given nothing; for none say {visible(name)}=null", param_hint="--set"
        )
    *groups, last = name.split(".")
    for group in groups:
        inner = settings.setdefault(group, {})
        if not isinstance(inner, dict):
            raise click.BadParameter(f"{visible(name)}: {group} is no group of settings", param_hint="--set")
        settings = inner
    settings[last] = _meant(path, name, value)


def _meant(path: str, name: str, value: str) -> object:
    """A value as YAML has it; where a text is wanted the very words, because 2.10 is no number and not 2.1."""
    import yaml

    from winhost.model.yamlfile import kinds_at
    from winhost.paths.playbook import VOCABULARIES

    kinds = kinds_at(VOCABULARIES[path].settings, tuple(name.split(".")))
    try:
        meant = yaml.safe_load(value)
    except yaml.YAMLError:
        meant = value
    none = meant is None and type(None) in kinds
    return value.strip() if str in kinds and not isinstance(meant, str) and not none else meant


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
    """A path that winhost judges but cannot plan yet."""

    path: str
    known: tuple[str, ...]

    @property
    def what(self) -> str:
        return f"winhost judges {self.path} and cannot plan it yet; it plans: {', '.join(self.known)}"

    @property
    def hint(self) -> str:
        return "Which of them this host supports: winhost assess HOST"
