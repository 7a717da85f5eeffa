"""Options of `winhost plan` for what a workload is served by."""

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from winhost.core.dataclass import dataclass

F = TypeVar("F", bound=Callable[..., Any])

_ASKED = "winhost.stack"  # in the context, until the plan takes it along
_SET = "winhost.stack.environment"

_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "--workload": {
        "metavar": "FILE",
        "type": click.Path(path_type=Path),
        "help": "Serve this workload as well: engines, models, the gateway, and as the last step a completion of "
        "each model.",
    },
    "--api-key": {
        "metavar": "NAME=REF",
        "multiple": True,
        "help": "Workload: an API key of the gateway: whose, and a secret reference, for example alice=env:ALICE_KEY.",
    },
    "--metrics-key": {
        "metavar": "NAME=REF",
        "multiple": True,
        "help": "Workload: a key for the gateway's /metrics, which no other key reads. NAME:MODEL,…=REF: of these "
        "models alone.",
    },
    "--yield-key": {
        "metavar": "NAME=REF",
        "multiple": True,
        "help": "Workload: a key that may ask all models to leave their GPUs for a while, and nothing else.",
    },
    "--engine-image": {
        "metavar": "IMAGE",
        "envvar": "WINHOST_ENGINE_IMAGE",
        "help": "Workload: the image of vLLM. Default: $WINHOST_ENGINE_IMAGE, "
        "or docker.io/vllm/vllm-openai, of the version that the workload "
        "states, else the newest that winhost knows. The registry is asked for the digest of its tag.",
    },
    "--digest": {
        "metavar": "SHA256",
        "help": "Workload: the digest of that image for this platform, sha256:…, instead of asking the registry.",
    },
    "--engine-archive": {
        "metavar": "FILE",
        "type": click.Path(path_type=Path),
        "help": "Workload: a file with that image, of docker save or winhost fetch, instead of a registry. Before "
        "the plan is applied, put it into /srv/winhost-offline/containers on the Linux that serves.",
    },
    "--engine-program": {
        "metavar": "PATH",
        "help": "Workload: no containers: this program on the Linux that serves, such as /opt/vllm/bin/vllm.",
    },
    "--engine-version": {
        "metavar": "VERSION",
        "help": "Workload: the version of vLLM in that image or program, where neither the workload nor the image's "
        "tag says it.",
    },
    "--engine-lock": {
        "metavar": "FILE",
        "type": click.Path(path_type=Path),
        "help": "Workload: no containers: vLLM in a Python environment of its own, made of wheels by this file, a "
        "requirements file with hashes as uv pip compile --generate-hashes writes it.",
    },
    "--python": {
        "metavar": "VERSION",
        "help": "Workload: the Python of the Linux that serves, such as 3.12, where its facts do not say. For wheels.",
    },
    "--index": {"metavar": "URL", "help": "Workload: another index of Python packages than https://pypi.org/simple."},
    "--listen": {
        "metavar": "ADDRESS:PORT",
        "help": "Workload: where the gateway listens. Default: 127.0.0.1:8443; with exposure: lan 0.0.0.0:8443.",
    },
    "--allow": {
        "metavar": "NETWORK",
        "multiple": True,
        "help": "Workload: a network that reaches an endpoint beyond the machine itself, for example 10.20.0.0/16.",
    },
    "--certificate": {"metavar": "PATH", "help": "Workload: a certificate on the Linux that serves, for TLS."},
    "--certificate-key": {"metavar": "PATH", "help": "Workload: the key of the certificate, likewise."},
    "--plain-http": {
        "is_flag": True,
        "help": "Workload: beyond the machine without TLS: others can read keys and prompts. A plan asks for: network.",
    },
    "--hub": {
        "metavar": "URL",
        "envvar": "WINHOST_HUB",
        "help": "Workload: another hub with the API of huggingface.co. Default: $WINHOST_HUB.",
    },
}


@dataclass(frozen=True)
class StackWords:
    """The options of a workload as they were given."""

    workload: Path
    api_key: tuple[str, ...] = ()
    metrics_key: tuple[str, ...] = ()
    yield_key: tuple[str, ...] = ()
    engine_image: str | None = None
    digest: str | None = None
    engine_archive: Path | None = None
    engine_program: str | None = None
    engine_version: str | None = None
    engine_lock: Path | None = None
    python: str | None = None
    index: str | None = None
    listen: str | None = None
    allow: tuple[str, ...] = ()
    certificate: str | None = None
    certificate_key: str | None = None
    plain_http: bool = False
    hub: str | None = None


def stack_options(*, leave_out: Collection[str] = ()) -> Callable[[F], F]:
    """Adds them; `stack_words` hands on what they say."""

    def keep(context: click.Context, option: click.Parameter, value: Any) -> None:
        if value not in (None, (), False):
            source = context.get_parameter_source(str(option.name))
            place = _SET if source is ParameterSource.ENVIRONMENT else _ASKED
            context.meta.setdefault(place, {})[str(option.name)] = value

    def decorate(command: F) -> F:
        for name, more in reversed([*_OPTIONS.items()]):
            if name not in leave_out:
                command = click.option(name, **more, callback=keep, expose_value=False)(command)
        return command

    return decorate


def stack_words(workload: Path | None = None) -> StackWords | None:
    """workload: of a command that names it otherwise. None where no workload is to be served. Raises UsageError for
    options without one.
    """
    context = click.get_current_context(silent=True)
    said: dict[str, Any] = dict(context.meta.get(_ASKED, {}) if context else {})
    if workload is not None:
        said["workload"] = workload
    if said and "workload" not in said:
        option = next(iter(said)).replace("_", "-")
        raise click.UsageError(f"--{option} is for what a workload is served by: name it with --workload")
    set_: dict[str, Any] = context.meta.get(_SET, {}) if context else {}
    return StackWords(**{**set_, **said}) if said else None


def stack_command(but: Collection[str] = ()) -> tuple[str, ...]:
    """The options as they were given, for a command that is typed again."""
    context = click.get_current_context(silent=True)
    said: dict[str, Any] = dict(context.meta.get(_ASKED, {}) if context else {})
    words: list[str] = []
    for name, value in said.items():
        option = f"--{name.replace('_', '-')}"
        if option in but:
            continue
        for each in value if isinstance(value, tuple) else (value,):
            words += [option] if each is True else [option, str(each)]
    return tuple(words)
