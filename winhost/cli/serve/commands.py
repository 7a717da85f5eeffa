"""Arguments, options and help of `winhost serve`."""

import click

from winhost.cli import completion, options
from winhost.cli.groups import WinhostGroup, implemented_in
from winhost.cli.options import flag, option, options_object, repeated
from winhost.cli.plan.stack_options import GatewayOptions
from winhost.core.dataclass import dataclass


@click.group(cls=WinhostGroup)
def serve() -> None:
    """Serve models on a target: settings with reasons, start, status, logs, test, stop."""


# Repeats winhost.serving, so that --help need not load it.
@serve.command()
@click.argument("facts", metavar="FACTS", required=False, type=options.PATH)
@options.facts_file
@options.workload(required=True)
@click.option(
    "--profile",
    "profile_name",
    type=click.Choice(("bare-metal", "bare-metal-no-sleep", "dda", "dda-no-sleep", "wsl2", "wsl2-no-sleep")),
    help="Use this profile for every model. Default: that of the path, or its -no-sleep where sleep mode is unsafe.",
)
@options.linux_path
@click.option(
    "--read-speed",
    type=options.WholeNumber(1, 1_000_000),
    default=2400,
    show_default=True,
    metavar="MB/S",
    help="Read speed of the disk with the weights, to estimate the time that is lost without sleep mode.",
)
@click.option("--explain", "everything", is_flag=True, help="Show the reason, versions and evidence of each line.")
@options.output_options()
@implemented_in("serve.serve")
def profile() -> None:
    """Print the vLLM settings for each model, ready to copy, with the reason for each line.

    FACTS is the facts file of the host, or a folder with only that file. Changes nothing.
    """


@serve.command()
@click.argument("model", metavar="MODEL")
@click.option("--revision", metavar="COMMIT", required=True, help="The commit, all 40 digits.")
@click.option("--folder", metavar="PATH", required=True, help="The folder for the files on the Linux that serves.")
@options.token
@options.hub
@implemented_in("serve.serve")
def files() -> None:
    """Print the files of a model at one revision, as an entry of a playbook.

    MODEL is ORG/NAME on the hub. The entry lists every file with its size and hash; the Linux that serves downloads the
    files itself and accepts no others.
    """


@dataclass(frozen=True)
class HandMadeGateway(GatewayOptions):
    """The settings of a gateway that a user runs by hand."""

    models: tuple[str, ...] = repeated(
        "NAME=ENGINE",
        "A model, by the name that clients use, and its engine: the path of a Unix socket, or ADDRESS:PORT.",
        name="--model",
        required=True,
    )
    shares: tuple[str, ...] = repeated(
        "NAME=GPUS", "A model that takes turns with others on these GPUs, by number: org/model=0 or org/model=0,1."
    )
    vllm: str | None = option("VERSION", "The version of vLLM, needed for models that sleep between their turns.")
    no_sleep: bool = flag("Stop and start engines between their turns instead of letting them sleep.")
    suspend: bool = flag(
        "Suspend sleeping engines, so that nothing of them stays on the GPU. Linux with its own driver, one GPU each."
    )
    idle: float | None = option(
        "DURATION",
        "After this time without a request, the model that served last also leaves its GPUs. Default: it stays.",
        type=options.DURATION,
    )
    trusted_proxies: tuple[str, ...] = repeated(
        "NETWORK", "A proxy that names its clients in X-Forwarded-For, such as 10.20.0.5/32.", name="--trusted-proxy"
    )
    proxy_protocol: bool = flag("These proxies name their clients by the PROXY protocol instead.")


@serve.command()
@options_object(HandMadeGateway, "options")
@implemented_in("serve.serve")
def gateway() -> None:
    """Print a gateway in front of vLLM as entries of a playbook.

    It needs at least one --model and one --api-key. Copy playbooks/linux.yaml, add the entries to its resources, and
    plan with --playbook. The entries contain hashes of API keys, never a key.
    """


@serve.command()
@click.argument("workload_file", metavar="WORKLOAD", type=options.PATH)
@click.option(
    "--url",
    metavar="URL",
    help="The URL of the gateway for the desktop's Windows. Default: url of yield_to, or http://127.0.0.1:8443.",
)
@options.output_options("FOLDER", "The folder to write.", required=True)
@implemented_in("render.render")
def watcher() -> None:
    """Write the program with which a Windows desktop requests the GPUs.

    Writes a script and its settings, from availability.yield_to of WORKLOAD. docs/wsl2.md says how to install it on
    that Windows, and how to remove it. Installs nothing.
    """


target_argument = click.argument("target", metavar="TARGET", **completion.HOSTS)
within_option = click.option(
    "--within",
    "timeout",
    type=options.DURATION,
    default="30m",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for each engine.",
)


@serve.command()
@target_argument
@options.model_filter
@within_option
@options.target
@implemented_in("serve.change")
def up() -> None:
    """Start the engines and the gateway of TARGET, and show the progress of each start.

    TARGET is a host of the fleet file: a Linux, or a Windows host whose WSL or guest serves. Starts engines one after
    the other, then the gateway. If an engine fails for a known reason, winhost stops it and explains the remedy.
    """


@serve.command()
@target_argument
@click.option(
    "--metrics-key",
    metavar="REF",
    help="A secret reference to a key for the gateway's metrics, for example env:METRICS_KEY. Shows its counts of "
    "requests, and whose turn it is.",
)
@options.target
@implemented_in("serve.status")
def status() -> None:
    """Show what TARGET serves: models, GPUs, memory, requests, versions. Changes nothing."""


@serve.command()
@target_argument
@options.model_filter
@click.option("--gateway", is_flag=True, help="Only the gateway; with --model, the gateway and these models.")
@click.option("--follow", "-f", is_flag=True, help="Show new lines as they come, until Ctrl-C.")
@click.option(
    "--lines",
    "-n",
    type=options.WholeNumber(1, 100_000),
    default=100,
    show_default=True,
    metavar="N",
    help="How many of the last lines to show.",
)
@options.target
@implemented_in("serve.status")
def logs() -> None:
    """Show what the engines and the gateway of TARGET wrote to the journal, without secrets."""


@serve.command()
@target_argument
@options.client_key
@options.model_filter
@options.target
@implemented_in("serve.status")
def test() -> None:
    """Send TARGET requests that it must answer, and requests that it must refuse; show time to first token and tokens
    per second.

    The target itself sends the requests to its gateway: for each model a completion, a stream and a prompt that is too
    long; then a model that does not exist, a request without a key, and a path that is not published.
    """


@serve.command()
@target_argument
@options.model_filter
@options.yes
@within_option
@options.target
@implemented_in("serve.change")
def down() -> None:
    """Stop the gateway of TARGET after its open requests, then its engines.

    With --model the gateway keeps running. Enabled units start again with the machine; winhost rollback removes them.
    """


@serve.group(cls=WinhostGroup)
def keys() -> None:
    """Add, list, limit and revoke API keys of the gateway of a target, without a restart.

    A file on the target stores the hashes of these keys, next to the keys of its plan. A new plan keeps the file, and
    winhost rollback of the gateway removes it.
    """


key_argument = click.argument("name", metavar="NAME")


@keys.command(name="list")
@target_argument
@options.target
@implemented_in("serve.keys")
def list_() -> None:
    """List the API keys of TARGET: state, models, limits, expiry and usage. Changes nothing."""


@keys.command()
@target_argument
@key_argument
@click.option(
    "--api-key",
    "key",
    metavar="REF",
    help="A secret reference to a key that you have. Default: winhost makes a new one.",
)
@click.option("--save", type=options.PATH, metavar="FILE", help="Write the new key to this new file.")
@options.model_filter
@click.option("--metrics", is_flag=True, help="The key reads /metrics and nothing else.")
@options.key_rules
@options.target
@implemented_in("serve.keys")
def add() -> None:
    """Add the API key NAME to TARGET. A new key is shown once, on a terminal.

    The gateway accepts it within a second.
    """


@keys.command()
@target_argument
@key_argument
@options.model_filter
@click.option("--all-models", is_flag=True, help="Let the key use all models.")
@options.key_rules
@options.target
@implemented_in("serve.keys")
def limit() -> None:
    """Change the models, limits and expiry of the API key NAME of TARGET. Limits that you do not name stay.

    Open requests continue; new requests get the new limits.
    """


@keys.command()
@target_argument
@key_argument
@options.yes
@options.target
@implemented_in("serve.keys")
def revoke() -> None:
    """Revoke the API key NAME of TARGET now: the gateway ends its open requests and never accepts it again.

    To let it expire later instead: winhost serve keys limit TARGET NAME --expires WHEN.
    """


@serve.command()
@click.option("--weights", type=options.Number(0.1), metavar="GIB", help="The size of the model's weights.")
@click.option(
    "--host-memory", type=options.Number(0), metavar="GIB", help="Host memory that the backups of weights may use."
)
@click.option("--swap-within", type=options.Number(0), metavar="SECONDS", help="How soon the model has to answer.")
@click.option("--pinned/--not-pinned", default=True, help="Whether backups are pinned. In WSL they mostly are not.")
@click.option("--reloads", is_flag=True, help="The model is dense, in bf16, without adapters: level 2 is safe.")
@implemented_in("serve.serve")
def explain() -> None:
    """Compare the states of a model between its turns (awake, asleep, suspended, stopped), and how soon it is back.

    With --weights and --host-memory, the command recommends one. Changes nothing.
    """
