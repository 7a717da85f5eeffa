"""Arguments, options and help of `winhost plan` and `winhost up`."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostCommand, does
from winhost.cli.options import (
    Size,
    assume_option,
    at_once_option,
    facts_option,
    fleet_option,
    force_option,
    hosts_and_facts,
    options_object,
    run_options,
    words_argument,
)
from winhost.cli.outputs import answers
from winhost.cli.stack_options import ClusterOptions, NewVmOptions, StackOptions


@click.command(cls=WinhostCommand)
@words_argument
@facts_option
@click.option("--path", help="The option, as assess names it. Default: the recommended one.", **completion.PATHS)
@click.option("--vm", help="dda: the VM that gets the GPUs, by name or GUID. Required if there are several.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    help="dda: a GPU, by name or location path. Default: all that can be used.",
)
@click.option(
    "--high", type=Size(), help="dda: high MMIO window, for example 64GiB. Default: computed from the BARs of the GPUs."
)
@click.option("--low", type=Size(), help="dda: low MMIO window. Default: computed.")
@click.option(
    "--power",
    type=click.Choice(["as-found", "running", "off"]),
    help="dda: the final state of the VM. Default: as-found.",
)
@options_object(NewVmOptions, "new_vm")
@options_object(StackOptions, "stack")
@options_object(ClusterOptions, "cluster")
@click.option("--playbook", type=click.Path(path_type=Path), help="Your own copy of the path's playbook.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the path, for example network=nat of wsl2.",
)
@assume_option
@click.option(
    "--allow-unverified", is_flag=True, help="Plan even if a required fact could not be read or the option is unproven."
)
@force_option
@click.option("--details", is_flag=True, help="Show every step with its reason, and all notes.")
@fleet_option
@at_once_option
@answers("FILE", "Write the plan to FILE; for several hosts, to FILE/<host>.json.", wide=True)
@hosts_and_facts
@does("plan")
def plan() -> None:
    """Plan what would change on a host, and how each change is undone.

    Takes HOSTs from fleet.yaml, or FACTS: facts files, or folders that detect wrote. Changes nothing. Without --path it
    plans the recommended option, but never dual-boot, bare-metal, an option that needs the approval data, or one that
    nobody has verified. With --workload it goes on to an endpoint that serves it.
    """


@click.command(cls=WinhostCommand)
@click.argument("model", metavar="[MODEL]", required=False)
@click.option(
    "--on", metavar="HOST", help="A host of fleet.yaml, or USER@ADDRESS. Default: this machine.", **completion.HOSTS
)
@click.option("--path", help="The option, as assess names it. Default: the recommended one.", **completion.PATHS)
@click.option("--set", "settings", multiple=True, metavar="NAME=VALUE", help="A setting of the path, as of plan.")
@click.option(
    "--allow-unverified",
    is_flag=True,
    help="Go on even if a required fact could not be read or the option is unproven.",
)
@click.option("--details", is_flag=True, help="Show every step with its reason before the summary.")
@options_object(StackOptions, "stack", leave_out=("workload",))
@run_options
@does("up")
def up() -> None:
    """Serve a MODEL on this machine, or on another.

    MODEL is ORG/NAME on Hugging Face, a name that `winhost models` shows, or a folder such as ./Qwen3-8B. Default: the
    one that fits the GPUs best. Shows on one screen what would change, then asks once. `winhost down` undoes it. After
    a restart or Ctrl-C, type it again.
    """
