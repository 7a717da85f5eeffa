"""Arguments, options and help of the commands that read hosts, judge facts, and explain what winhost knows."""

import re
from pathlib import Path
from typing import Any

import click

from winhost.cli import completion, options
from winhost.cli.formats import FILES, KINDS
from winhost.cli.groups import WinhostCommand, WinhostGroup, implemented_in
from winhost.cli.options import declared, options_object, repeated, split_choices, split_commas
from winhost.core.dataclass import dataclass


@click.command(cls=WinhostCommand)
@options.hosts
@options.force
@options.fleet
@options.at_once
@options.output_options("FOLDER", "Write FOLDER/<host>.json.", wide=True)
@implemented_in("look.detect")
def detect() -> None:
    """Read HOSTS: hardware, Windows, VMs and WSL.

    Changes nothing. HOSTS are names from fleet.yaml, patterns ('gpu-*') or groups ('@lab'). If an account created by
    winhost owns a WSL distro, the distro is read through that account's scheduled task, which logs the account on (see
    docs/safety.md).
    """


PARTS = ("pin-limit", "checkpoint", "nccl", "container")


@click.command(cls=WinhostCommand)
@options.hosts
@click.option(
    "--also",
    "also",
    multiple=True,
    metavar="PART[,PART...]",
    callback=split_choices(PARTS),
    help="Also run tests that disturb more: pin-limit (pins up to 4 GiB, which Windows shares), checkpoint (suspends a "
    "process of its own), nccl (an all-reduce over all GPUs), container (driver and NCCL in --image).",
)
@click.option(
    "--image",
    metavar="IMAGE",
    help="The container image for --also container. It must be on the host already and contain python3.",
)
@options.force
@options.fleet
@options.at_once
@options.output_options("FOLDER", "Write FOLDER/<host>.json: the facts and the measurements.")
@implemented_in("look.detect")
def probe() -> None:
    """Test what the GPUs of HOSTS can do in Linux, and add the results to the facts.

    Reads each host as detect does, then runs tests in its Linux (WSL distro, guest, or a host of its own), over SSH,
    with little memory and in seconds: CUDA, copies, peer-to-peer, CUDA IPC, managed memory and /dev/shm. Verdicts then
    rest on these measurements. winhost skips a test for which too little memory is free.
    """


@dataclass(frozen=True)
class AssessmentOptions:
    """The capabilities that hosts must offer, and the assumptions under which they are judged."""

    path: str | None = declared(options.path_filter)
    needed: tuple[str, ...] = repeated(
        "CAPABILITY[,...]", "Require this capability.", name="--need", callback=split_commas, **completion.CAPABILITIES
    )
    workload_file: Path | None = declared(options.workload())
    remedies: tuple[str, ...] = repeated(
        "REMEDY", "Judge as if this remedy were applied.", name="--what-if", **completion.REMEDIES
    )
    assumed: tuple[str, ...] = declared(options.assume, ())


@click.command(cls=WinhostCommand)
@options.hosts_or_facts
@options.facts_files
@options_object(AssessmentOptions, "options")
@click.option("--explain", "everything", is_flag=True, help="Show every reason of every option, and the notes.")
@click.option("--details", is_flag=True, help="Show each of several hosts in full.")
@click.option(
    "--full", "in_full", is_flag=True, help="With --json or -o yaml: include reasons that do not affect the verdict."
)
@options.fleet
@options.at_once
@options.output_options(wide=True)
@options.hosts_and_facts
@implemented_in("look.assess")
def assess() -> None:
    """Show which options work on a host, which do not, and why.

    Takes HOSTs from fleet.yaml, or FACTS: facts files, or folders that detect wrote. Changes nothing. Several hosts are
    shown one per row; --details shows each in full.
    """


@click.command(cls=WinhostCommand)
@click.argument("sources", nargs=-1, required=True, metavar="FACTS|HOST...", **completion.HOSTS_AND_FILES)
@options.force
@options_object(AssessmentOptions, "options", leave_out=("path",))
@click.option("--brief", is_flag=True, help="Only the deciding reasons: one printed page per host.")
@options.fleet
@options.at_once
@options.output_options("FILE", "The file to write, or a folder for one page per host.", required=True)
@options.hosts_and_facts
@implemented_in("look.report")
def report() -> None:
    """Write the verdicts on hosts to one HTML file, to read and share.

    FACTS are facts files or folders of them; HOSTs are names from fleet.yaml, patterns or groups. Changes nothing. The
    file is self-contained: no scripts, no network. A folder (one that exists, or whose name ends with /) gets one page
    per host and an index.html.
    """


@click.command(cls=WinhostCommand)
@click.argument("before", metavar="FACTS", type=options.PATH)
@click.argument("after", metavar="FACTS", type=options.PATH)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Include facts that change by themselves, such as free memory or the boot id.",
)
@options.output_options(wide=True)
@implemented_in("look.diff")
def diff() -> None:
    """Compare two snapshots: which facts changed, and which verdicts changed with them.

    Takes two facts files, the older one first. With two folders that detect wrote, each host is compared with itself;
    with a folder and a file, only the host in the file. Facts that change by themselves count only with --all.
    """


# Repeats winhost.imports.sources, so that --help need not load the readers.
TOOLS: tuple[str, ...] = (
    *("nvidia-smi", "dxdiag", "computer-info", "systeminfo", "lspci", "survey-dda", "pnp-devices", "disks"),
    *("partitions", "manage-bde", "bcdedit", "msinfo32", "partitionable-gpus", "wsl-version", "wsl-list", "hyper-v"),
    *("linux", "windows-version"),
)


@click.group(cls=WinhostGroup)
def facts() -> None:
    """Make facts files from the output of a machine's own tools."""


@facts.command("import")
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=options.PATH)
@click.option("--host", metavar="NAME", help="Name for the machine. Default: its own name, if a file contains it.")
@click.option(
    "--kind", type=click.Choice(TOOLS), help="The kind of all FILES. Default: recognised from the content of each."
)
@options.force
@options.output_options("FILE", "Write the facts to FILE.", wide=True)
@implemented_in("look.facts")
def import_() -> None:
    """Make a facts file of one machine from FILES.

    FILES are the output of nvidia-smi -q -x (on Windows or Linux; also its plain table), Get-ComputerInfo |
    ConvertTo-Json, systeminfo (also with /fo csv), SurveyDDA.ps1, lspci -vv -nn (from a live Linux on the same
    machine), dxdiag /x, Get-PnpDevice -Class Display, Get-VMHost, Get-VM, wsl --version, wsl -l -v, or uname -a, lscpu
    or docker info in WSL; docs/facts.md lists them all. One file may hold several of them. Facts that no file contains
    are unknown. If two files differ, the more exact one counts; if they are equally exact, the fact is unknown.
    winhost skips unreadable files with a warning, and refuses files from two different machines. If the FILE of -o has
    facts of an earlier import of this machine, facts that FILES do not contain stay in it.
    """


@click.command(cls=WinhostCommand)
@click.argument("subject", required=False, **completion.SUBJECTS)
@options.output_options(wide=True)
@implemented_in("look.known")
def known() -> None:
    """List the oldest and newest versions that winhost knows about, and when that was checked.

    Without SUBJECT, the command lists all subjects, for example wsl or vllm. With SUBJECT, it lists each statement
    about it, with the newest version for which the statement was checked and the day; -o wide adds its claim and its
    source. A verdict that rests on statements about versions other than the host's is unverified.
    """


_NEGATIVE = re.compile(r"-[0-9]{9,10}")


class ExplainCommand(WinhostCommand):
    """A command that takes a negative number as a Windows error code, not as an option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> Any:
        return super().parse_args(
            ctx, [f"0x{int(arg) & 0xFFFFFFFF:08X}" if _NEGATIVE.fullmatch(arg) else arg for arg in args]
        )


@click.command(cls=ExplainCommand)
@click.argument("words", metavar="[CODE|TEXT|FILE|-]...", required=False, nargs=-1, **completion.CODES)
@click.option("--list", "list_codes", is_flag=True, help="List all codes, or those that start with CODE.")
@options.facts_file
@options.output_options()
@implemented_in("look.explain")
def explain() -> None:
    """Explain a reason by its CODE, or an error that you paste.

    For a CODE of winhost: what the reason says and means, its remedy, its evidence with sources, and related reasons.
    The codes for a fact that could not be read are listed once, as *.unknown, and can be explained for each path and
    capability, for example nvlink.unknown. For a CODE that lint prints: what it finds, why, and what to do. For a CODE
    of serve profile --explain: the line, when it is set, why, and its evidence.

    TEXT is what another program printed: an error code of Windows (0xC035001E or -2147023511), or a message of wsl.exe,
    Hyper-V, Linux's kernel, Docker, NCCL or vLLM. FILE is a log of any size; - is standard input, which is also read
    without any argument if a pipe leads to it. The answer is the likely causes, how to tell which one it is, and the
    remedy. --facts rules out the causes that the facts contradict. Secrets in the text are never shown.
    """


@click.command(cls=WinhostCommand)
@click.argument("name", type=click.Choice((*FILES, *KINDS, "event")), metavar="FORMAT")
@implemented_in("look.schema")
def schema() -> None:
    """Print the JSON Schema of a winhost file or output format.

    FORMAT is a file: facts (what detect writes), plan (what plan writes), fleet (fleet.yaml), playbook (what a path
    sets up), workload (workload.yaml), host (a simulated host), journal (a line of a run's journal). Or the output of a
    command with --json: detection (detect, facts import), probe, assessment and assessment-full (assess, assess
    --full), report, diff, explanation (explain CODE), diagnosis (explain TEXT), codes (explain --list), known, planning
    (plan), check (apply --check), outcome (apply, resume, rollback), runs, run (runs RUN), verification (verify), boot
    and boot-linux (boot), bundle, lint (lint wslconfig, wslconf, autoinstall), recipe (lint serve, docker-daemon, cdi),
    install-plan, install-media and install-bmc (install), profile (serve profile), serving (serve status),
    serving-change (serve up, down and the like), serving-keys, serving-log, serving-test, yield, hosts and host-test
    (host), chat, status, lab (lab list), draft (workload init), fetched (fetch), models, models-refreshed, weights,
    rendered (render), error (if a command fails before any result). Or event: a line of apply, resume and rollback with
    --jsonl.
    """
