"""Arguments, options and help of `winhost plan` and `winhost up`."""

import sys
from pathlib import Path
from typing import Literal, get_args

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostCommand, implemented_in
from winhost.cli.options import RunOptions, declared, flag, option, options_object, repeated, run_options
from winhost.cli.plan.stack_options import ClusterOptions, NewVmOptions, StackOptions
from winhost.core.dataclass import dataclass

Power = Literal["as-found", "running", "off"]
DDA = "Path dda"


@dataclass(frozen=True)
class PlanOptions:
    """The options of `winhost plan`. variant: a path or one of its variants; power: None if not specified."""

    variant: str | None = declared(options.path)
    vm: str | None = option(
        "NAME", "The VM that gets the GPUs, by name or GUID. Required if there are several.", section=DDA
    )
    gpus: tuple[str, ...] = repeated(
        "NAME", "A GPU, by name or location path. Default: all that can be used.", name="--gpu", section=DDA
    )
    high: int | None = option(
        "SIZE",
        "The high MMIO window, for example 64GiB. Default: computed from the BARs of the GPUs.",
        type=options.SIZE,
        section=DDA,
    )
    low: int | None = option("SIZE", "The low MMIO window. Default: computed.", type=options.SIZE, section=DDA)
    power: Power | None = option(
        None, "The final state of the VM. Default: as-found.", type=click.Choice(get_args(Power)), section=DDA
    )
    new_vm: NewVmOptions = declared(
        options_object(NewVmOptions, "new_vm", section="Path dda with a VM that winhost makes"), NewVmOptions()
    )
    stack: StackOptions = declared(options_object(StackOptions, "stack", section="With --workload"), StackOptions())
    cluster: ClusterOptions = declared(
        options_object(ClusterOptions, "cluster", section="A workload with deploy: kubernetes"), ClusterOptions()
    )
    playbook: Path | None = option("FILE", "Your own copy of the path's playbook.")
    settings: tuple[str, ...] = declared(options.settings, ())
    assumed: tuple[str, ...] = declared(options.assume, ())
    allow_unverified: bool = declared(options.allow_unverified, False)


@click.command(cls=WinhostCommand)
@options.hosts_or_facts
@options.facts_files
@options_object(PlanOptions, "options")
@options.force
@click.option("--details", is_flag=True, help="Show every step with its reason, and all notes.")
@options.fleet
@options.at_once
@options.output_options("FILE", "Write the plan to FILE; for several hosts, to FILE/<host>.json.", wide=True)
@options.hosts_and_facts
@implemented_in("plan.plan")
def plan() -> None:
    """Plan what would change on a host, and how each change is undone.

    Takes HOSTs from fleet.yaml, or FACTS: facts files, or folders that detect wrote. Changes nothing. Without --path it
    plans the recommended option, but never dual-boot, bare-metal, an option that needs the approval data, or one that
    nobody has verified. With --workload it goes on to an endpoint that serves it.
    """


@dataclass(frozen=True)
class UpOptions:
    """The request of `winhost up`: its argument and options. on: None for this machine."""

    model: str | None = declared(click.argument("model", metavar="[MODEL]", required=False))
    on: str | None = option("HOST", "A host of fleet.yaml, or USER@ADDRESS. Default: this machine.", **completion.HOSTS)
    variant: str | None = declared(options.path)
    settings: tuple[str, ...] = declared(options.settings, ())
    allow_unverified: bool = declared(options.allow_unverified, False)
    details: bool = flag("Show every step with its reason before the summary.")
    stack: StackOptions = declared(
        options_object(StackOptions, "stack", leave_out=("workload",), section="What serves the model"), StackOptions()
    )
    options: RunOptions = declared(run_options, RunOptions())

    @property
    def can_ask(self) -> bool:
        """Tell whether the user can answer questions."""
        return not self.options.yes and sys.stdin.isatty()

    @property
    def answer_options(self) -> tuple[str, ...]:
        """The options that answer questions, as they were typed."""
        accept = ("--accept", ",".join(self.options.accepted)) if self.options.accepted else ()
        return (*(("--yes",) if self.options.yes else ()), *accept)

    def command(self, *extra: str) -> str:
        """Return this command as a line for the shell, without the options that answer questions. extra: more options,
        which replace those for the same purpose.
        """
        from winhost.cli.shells import command_line

        uses_vhdx = any(each.startswith("new_vm.vhdx.") for each in extra)  # a new VM has either a VHDX or an image
        settings = [each for each in self.settings if not (uses_vhdx and each.startswith("new_vm.image."))]
        arguments = [
            "winhost",
            "up",
            *((self.model,) if self.model else ()),
            *(("--on", self.on) if self.on else ()),
            *(("--path", self.variant) if self.variant else ()),
            *(word for each in settings for word in ("--set", each)),
            *(("--allow-unverified",) if self.allow_unverified else ()),
            *self.stack.command(extra),
            *(("--fleet", str(fleet)) if (fleet := self.options.fleet_file) else ()),
        ]
        return command_line((*arguments, *extra))


@click.command(cls=WinhostCommand)
@options_object(UpOptions, "request")
@implemented_in("up.up")
def up() -> None:
    """Serve a MODEL on this machine, or on another.

    MODEL is ORG/NAME on Hugging Face, a name that `winhost models` shows, or a folder such as ./Qwen3-8B. Default: the
    one that fits the GPUs best. Shows on one screen what would change, then asks once. `winhost down` undoes it. After
    a restart or Ctrl-C, type it again.
    """
