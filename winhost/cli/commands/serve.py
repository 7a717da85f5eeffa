"""Arguments, options and help of `winhost serve`."""

from pathlib import Path

import click

from winhost.cli import completion
from winhost.cli.groups import WinhostGroup, does
from winhost.cli.options import (
    Duration,
    Number,
    WholeNumber,
    hub_option,
    key_rules,
    option,
    options_object,
    target_options,
    yes_option,
)
from winhost.cli.outputs import answers
from winhost.core.dataclass import dataclass


@click.group(cls=WinhostGroup)
def serve() -> None:
    """Serve models on a target: settings and why, start, status, logs, test, stop."""


# Said twice, here and in winhost.serving, so that --help need not load it.
@serve.command()
@click.argument("facts", metavar="FACTS", required=False, type=click.Path(path_type=Path))
@click.option("--target", "facts_file", type=click.Path(path_type=Path), help="The same as FACTS.")
@click.option(
    "--workload", "workload_file", type=click.Path(path_type=Path), required=True, help="The workload to be served."
)
@click.option(
    "--profile",
    "named",
    type=click.Choice(("bare-metal", "bare-metal-no-sleep", "dda", "dda-no-sleep", "wsl2", "wsl2-no-sleep")),
    help="Use this profile for every model. Default: that of the path, or its -no-sleep where sleep mode is unsafe.",
)
@click.option(
    "--path",
    type=click.Choice(("wsl2", "dda", "dual-boot", "bare-metal")),
    help="Of a Windows host: how it gets its Linux. Default: wsl2, or dda where only that carries the workload.",
)
@click.option(
    "--read-speed",
    type=WholeNumber(1, 1_000_000),
    default=2400,
    show_default=True,
    metavar="MB/S",
    help="Read speed of the disk with the weights, for the time that is lost without sleep mode.",
)
@click.option("--explain", "everything", is_flag=True, help="Show the reason, versions and evidence of each line.")
@answers()
@does("serve")
def profile() -> None:
    """Print the vLLM settings for each model, ready to copy, with the reason for each line.

    FACTS is the facts file of the host, or a folder with only that file. Changes nothing.
    """


@serve.command()
@click.argument("model", metavar="MODEL")
@click.option("--revision", metavar="COMMIT", required=True, help="The commit, all 40 digits.")
@click.option("--folder", metavar="PATH", required=True, help="Where the files are to be on the Linux that serves.")
@click.option("--token", metavar="REF", help="A secret reference to a token of the hub, for example env:HF_TOKEN.")
@hub_option
@does("serve")
def files() -> None:
    """Print the files of a model at one revision, as an entry of a playbook.

    MODEL is ORG/NAME on the hub. The entry has every file with its size and hash; the Linux that serves downloads them
    itself and accepts nothing else.
    """


@dataclass(frozen=True)
class GatewayOptions:
    """The settings of a gateway that a user runs by hand."""

    models: tuple[str, ...] = option(
        "--model",
        "models",
        metavar="NAME=ENGINE",
        multiple=True,
        required=True,
        help="A model by the name that clients use, and its engine: the path of a Unix socket, or ADDRESS:PORT. "
        "Repeat it.",
    )
    keys: tuple[str, ...] = option(
        "--api-key",
        "keys",
        metavar="NAME=REF",
        multiple=True,
        required=True,
        help="An API key: whose it is, and a secret reference to it, for example alice=env:ALICE_KEY. Repeat it.",
    )
    metrics_keys: tuple[str, ...] = option(
        "--metrics-key",
        "metrics_keys",
        metavar="NAME=REF",
        multiple=True,
        help="A key for /metrics, which no other key reads. NAME:MODEL,…=REF: of these models alone. Repeat it.",
    )
    yield_keys: tuple[str, ...] = option(
        "--yield-key",
        "yield_keys",
        metavar="NAME=REF",
        multiple=True,
        help="A key that may ask all models to leave their GPUs for a while, and nothing else. Repeat it.",
    )
    listen: str = option(
        "--listen",
        metavar="ADDRESS:PORT",
        default="127.0.0.1:8443",
        show_default=True,
        help="Where the gateway listens.",
    )
    certificate: str | None = option(
        "--certificate",
        metavar="PATH",
        help="A certificate in PEM on the Linux that serves, for TLS; it needs --certificate-key.",
    )
    certificate_key: str | None = option(
        "--certificate-key", metavar="PATH", help="The key of the certificate, likewise."
    )
    plain_http: bool = option(
        "--plain-http",
        is_flag=True,
        help="Listen beyond the machine without TLS: others on the network can read keys, prompts and answers. "
        "The plan asks for the approval `network`.",
    )
    shares: tuple[str, ...] = option(
        "--shares",
        metavar="NAME=GPUS",
        multiple=True,
        help="A model that takes turns with others on these GPUs, by number: org/model=0 or org/model=0,1. Repeat it.",
    )
    vllm: str | None = option(
        "--vllm", metavar="VERSION", help="The version of vLLM, needed for models that sleep between their turns."
    )
    no_sleep: bool = option(
        "--no-sleep", is_flag=True, help="Stop and start engines between their turns instead of letting them sleep."
    )
    suspend: bool = option(
        "--suspend",
        is_flag=True,
        help="Suspend sleeping engines, so that nothing of them stays on the GPU. Linux with its own driver, one GPU "
        "each.",
    )
    idle: float | None = option(
        "--idle",
        type=Duration(),
        metavar="DURATION",
        help="So long without a request, and the model that was used last leaves its GPUs too: 10m. Default: it stays.",
    )
    trusted_proxies: tuple[str, ...] = option(
        "--trusted-proxy",
        "trusted_proxies",
        metavar="NETWORK",
        multiple=True,
        help="A proxy that says in X-Forwarded-For for whom it asks, such as 10.20.0.5/32. Repeat it.",
    )
    proxy_protocol: bool = option(
        "--proxy-protocol", is_flag=True, help="Those proxies say it by the PROXY protocol instead."
    )


@serve.command()
@options_object(GatewayOptions, "asked")
@does("serve")
def gateway() -> None:
    """Print the gateway before vLLM as entries of a playbook.

    Copy playbooks/linux.yaml, add the entries to its resources, and plan with --playbook. They hold the hashes of
    API keys, never a key.
    """


@serve.command()
@click.argument("workload_file", metavar="WORKLOAD", type=click.Path(path_type=Path))
@click.option(
    "--url",
    metavar="URL",
    help="The gateway, as the desktop's Windows reaches it. Default: url of yield_to, or http://127.0.0.1:8443.",
)
@answers("FOLDER", "The folder to write.", required=True)
@does("render")
def watcher() -> None:
    """Write the program with which a Windows desktop asks for the GPUs.

    It is a script and its settings, by availability.yield_to of WORKLOAD. docs/wsl2.md says how it is put on that
    Windows, and taken off. Nothing is installed.
    """


target_argument = click.argument("target", metavar="TARGET", **completion.HOSTS)
models_option = click.option(
    "--model", "models", metavar="NAME", multiple=True, help="Only this model, as clients call it. May be repeated."
)
within_option = click.option(
    "--within",
    type=Duration(),
    default="30m",
    show_default=True,
    help="How long to wait for each.",
)
_KEY = "A secret reference to an API key of the gateway, for example env:API_KEY"


@serve.command()
@target_argument
@models_option
@within_option
@target_options
@does("serve_change")
def up() -> None:
    """Start what is served on TARGET, and show how far each start is.

    TARGET is a host of the fleet file: a Linux, or a Windows host whose WSL or guest serves. Engines start one after
    the other, then the gateway. A failure that is known is explained with its remedy, and its engine is stopped.
    """


@serve.command()
@target_argument
@click.option(
    "--metrics-key",
    metavar="REF",
    help="A secret reference to a key for the gateway's metrics, for example env:METRICS_KEY: shows its counts of "
    "requests and whose turn it is, too.",
)
@target_options
@does("serve_status")
def status() -> None:
    """Show what is served on TARGET: models, GPUs, memory, requests, versions. Changes nothing."""


@serve.command()
@target_argument
@models_option
@click.option("--gateway", is_flag=True, help="Only the gateway, or the gateway and the models that are named.")
@click.option("--follow", "-f", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option(
    "--lines",
    "-n",
    type=WholeNumber(1, 100_000),
    default=100,
    show_default=True,
    help="How many of the last lines to show.",
)
@target_options
@does("serve_status")
def logs() -> None:
    """Show what engines and gateway of TARGET wrote to the journal, without secrets."""


@serve.command()
@target_argument
@click.option("--api-key", "key", metavar="REF", help=f"{_KEY}. Default: the one that winhost made for TARGET.")
@models_option
@target_options
@does("serve_test")
def test() -> None:
    """Ask TARGET for completions, and for what it must refuse; show the time to the first token and tokens per second.

    The requests come from the target itself and go to the gateway: for each model a completion, a stream and a prompt
    that is too long; then a model that is not there, a request without a key, and a path that is not published.
    """


@serve.command()
@target_argument
@models_option
@yes_option
@within_option
@target_options
@does("serve_change")
def down() -> None:
    """Stop the gateway of TARGET, when open requests are done, and then its engines.

    With --model the gateway stays. What is enabled starts again with the machine; winhost rollback removes it.
    """


@serve.group(cls=WinhostGroup)
def keys() -> None:
    """Add, list, limit and revoke API keys of the gateway of a target, without a restart.

    They stand in a file of the target, beside the keys of its plan: a new plan leaves them, and winhost rollback of the
    gateway removes them. Only their hashes are there.
    """


key_argument = click.argument("name", metavar="NAME")


@keys.command(name="list")
@target_argument
@target_options
@does("serve_keys")
def list_() -> None:
    """List the API keys of TARGET: state, models, limits, expiry, and what each used. Changes nothing."""


@keys.command()
@target_argument
@key_argument
@click.option(
    "--api-key", "key", metavar="REF", help="A secret reference to a key that you have. Default: a new one is made."
)
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="A new file for the new key.")
@click.option("--model", "models", metavar="MODEL", multiple=True, help="Only this model. May be repeated.")
@click.option("--metrics", is_flag=True, help="It reads /metrics and nothing else.")
@key_rules
@target_options
@does("serve_keys")
def add() -> None:
    """Add the API key NAME to TARGET. A new key is shown once, on a terminal.

    It counts as soon as the gateway has read it, within a second.
    """


@keys.command()
@target_argument
@key_argument
@click.option("--model", "models", metavar="MODEL", multiple=True, help="Only this model. May be repeated.")
@click.option("--all-models", is_flag=True, help="All models.")
@key_rules
@target_options
@does("serve_keys")
def limit() -> None:
    """Change what the API key NAME of TARGET may use, and until when. What is left out stays.

    Requests that run go on; the next ones find the new limits.
    """


@keys.command()
@target_argument
@key_argument
@yes_option
@target_options
@does("serve_keys")
def revoke() -> None:
    """End the API key NAME of TARGET now: its open requests are broken off, and it never counts again.

    To end it at some time instead, without that: winhost serve keys limit TARGET NAME --expires WHEN.
    """


@serve.command()
@click.option("--weights", type=Number(0.1), metavar="GIB", help="The size of the model's weights.")
@click.option("--host-memory", type=Number(0), metavar="GIB", help="Host memory that backups may take.")
@click.option("--swap-within", type=Number(0), metavar="SECONDS", help="How soon the model has to answer.")
@click.option("--pinned/--not-pinned", default=True, help="Whether backups are pinned. In WSL they mostly are not.")
@click.option("--reloads", is_flag=True, help="The model is dense, in bf16, without adapters: level 2 is safe.")
@does("serve")
def explain() -> None:
    """Show how a model may rest between its turns: awake, asleep, suspended, stopped, and how soon it is back.

    With --weights and --host-memory it says which one to take. Changes nothing.
    """
