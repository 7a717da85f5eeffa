"""Arguments and options that several commands share, each spelled once."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import field, fields
from functools import wraps
from ipaddress import ip_address
from pathlib import Path
from typing import Any, TypeVar, cast

import click

from winhost.cli import completion
from winhost.cli.groups import log_options
from winhost.cli.outputs import Output, answers
from winhost.core.dataclass import dataclass
from winhost.model.durations import parse_age, parse_duration
from winhost.model.plan import RISKS

F = TypeVar("F", bound=Callable[..., Any])


def fleet_option(command: F) -> F:
    """Add `--fleet`, `-v` and `--debug`, which every command that reaches hosts has."""
    return click.option(
        "--fleet",
        "fleet_file",
        type=click.Path(path_type=Path),
        help="The fleet file. Default: $WINHOST_FLEET, ./fleet.yaml, then your configuration folder.",
    )(log_options()(command))


class Number(click.FloatRange):
    """A number, called so in errors, where click says 'float range'."""

    name = "number"


class WholeNumber(click.IntRange):
    """A whole number, where click says 'integer range'."""

    name = "whole number"


at_once_option = click.option(
    "--at-once",
    type=WholeNumber(1, 256),
    default=16,
    show_default=True,
    help="How many hosts to work on at the same time.",
)
facts_option = click.option(
    "--facts",
    "facts_files",
    type=click.Path(path_type=Path),
    multiple=True,
    help="Use this facts file, or those in this folder, instead of reading a host; may be repeated.",
)


# Its default is named here as well as in winhost.hub, so that --help need not load that.
hub_option = click.option(
    "--hub",
    metavar="URL",
    envvar="WINHOST_HUB",
    default="https://huggingface.co",
    help="A hub with the same API. Default: $WINHOST_HUB, or https://huggingface.co.",
)


assume_option = click.option(
    "--assume",
    "assumed",
    multiple=True,
    metavar="FACT=VALUE[,...]",
    help="State facts that could not be read: os=win11-pro,ram=128GiB. What depends on them is marked as stated.",
)
# Said twice, here and in winhost.lab.lab, so that --help need not load the lab.
engine_option = click.option(
    "--engine",
    type=click.Choice(("contract", "pwsh")),
    default="contract",
    show_default=True,
    help="contract runs no PowerShell; pwsh runs the real scripts in the one on PATH or in WINHOST_PWSH.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask whether to begin. Approvals are still asked for.")
force_option = click.option("--force", is_flag=True, help="Let -o overwrite a file of another kind.")
hosts_argument = click.argument("hosts", nargs=-1, metavar="HOST...", **completion.HOSTS)
words_argument = click.argument("words", nargs=-1, metavar="HOST|FACTS...", **completion.HOSTS_AND_FILES)


def split_words(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
    """Split words that have commas between them."""
    return tuple(name.strip() for word in words for name in word.split(",") if name.strip())


def one_of(known: Sequence[str]) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]]:
    """Split likewise, and refuse what is not known."""

    def split(context: click.Context, option: click.Parameter, words: tuple[str, ...]) -> tuple[str, ...]:
        given = split_words(context, option, words)
        for word in given:
            if word not in known:
                raise click.BadParameter(f"{word!r} is none of: {', '.join(known)}")
        return given

    return split


accept_option = click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="RISK[,RISK...]",
    callback=one_of(tuple(RISKS)),
    **completion.CONSENTS,
    help="Approve a risk of the plan: vm-stop, vm-turn-off, restart, headless, force-dismount, network, packages, "
    "containers, data.",
)


class Duration(click.ParamType[float]):
    """`90`, `10s`, `5m`, `1h`; seconds as a float."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        try:
            return parse_duration(int(value) if re.fullmatch(r"[0-9]{1,9}", value) else value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


class Age(click.ParamType[int]):
    """`12h`, `7d`; seconds."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_age(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


class KeyLimit(click.ParamType[int | str]):
    """A number; `none`; or `default`: as every key has it."""

    name = "number|none|default"
    most = 1_000_000_000

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        text = str(value)
        if text in ("none", "default"):
            return text
        if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= self.most:
            self.fail(f"{text!r:.80} is no whole number from 1 to {self.most:,}, nor none or default", param, ctx)
        return int(text)


class Size(click.ParamType[int]):
    """`64GiB`, `33280MiB` or bytes."""

    name = "size"
    longest = 18  # digits; Windows counts bytes in 64 bits
    units = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}  # noqa: RUF012 - a constant table

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        number = str(value).replace(",", "").replace("_", "").strip().upper()
        digits = number.rstrip("BGIKM ")
        unit = number[len(digits) :].strip()
        if not (digits.isdecimal() and len(digits) <= self.longest and int(digits)) or unit not in self.units:
            self.fail(f"{value!r:.80} is not a size; write 64GiB, 33280MiB or bytes, more than 0", param, ctx)
        return int(digits) * self.units[unit]


class AddressPort(click.ParamType[tuple[str, int]]):
    """`10.20.0.4:8443`, `[::1]:8443`: an IP address and a port."""

    name = "ADDRESS:PORT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        address, _, port = str(value).rpartition(":")
        try:
            number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 0
            if not 1 <= number <= 65_535:
                raise ValueError
            return str(ip_address(address.strip("[]"))), number
        except ValueError:
            self.fail(f"{value!r:.80} is not ADDRESS:PORT, such as 10.20.0.4:8443", param, ctx)


# ---- options that go together, as one object


def declared(option: Callable[..., Any], default: Any = None) -> Any:
    """Make a field of an options object, with the option that fills it."""
    return field(default=default, metadata={"option": option})


def option(*names: str, **more: Any) -> Any:
    """Make such a field with an option that only this object has. Takes what `click.option` takes."""
    usual = () if more.get("multiple") else False if more.get("is_flag") else more.get("default")
    return declared(click.option(*names, **more), usual)


def options_object(kind: type[Any], name: str, leave_out: Collection[str] = (), **other: Any) -> Callable[[F], F]:
    """Hand the arguments of a command that are fields of a dataclass to it as one argument `name`, after adding the
    options that the fields declare. leave_out: fields whose options are not added; other: options of this command in
    place of those that fields declare.
    """
    known = fields(kind)

    def decorate(command: F) -> F:
        @wraps(command)
        def with_object(*args: Any, **given: Any) -> Any:
            made = kind(**{each.name: given.pop(each.name) for each in known if each.name in given})
            return command(*args, **{name: made}, **given)

        wrapped: Any = with_object
        for each in reversed(known):
            if "option" in each.metadata and each.name not in leave_out:
                wrapped = other.get(each.name, each.metadata["option"])(wrapped)
        return cast(F, wrapped)

    return decorate


@dataclass(frozen=True)
class HostsAndFacts:
    """The hosts that are named: words for them and for facts files, and facts files of the option."""

    words: tuple[str, ...]
    facts_files: tuple[Path, ...] = ()
    fleet_file: Path | None = None
    at_once: int = 16

    @property
    def typed(self) -> list[str]:
        """Return the words and options that name them, for another command."""
        return [*self.words, *(word for file in self.facts_files for word in ("--facts", str(file)))]


hosts_and_facts = options_object(HostsAndFacts, "hosts")


@dataclass(frozen=True)
class KeyRules:
    """The models, limits and lifetime of an API key. None: not specified."""

    models: tuple[str, ...] = ()
    all_models: bool = False
    expires: str | None = option(
        "--expires",
        metavar="WHEN",
        help="From when on it counts no more: 30d, 12h, 2027-01-31, 2027-01-31T12:00Z (UTC) or never.",
    )
    concurrent: int | str | None = option(
        "--concurrent", type=KeyLimit(), help="Requests at a time: a number, none, or default."
    )
    requests_per_minute: int | str | None = option(
        "--requests-per-minute", type=KeyLimit(), help="Likewise, requests per minute."
    )
    tokens_per_minute: int | str | None = option(
        "--tokens-per-minute", type=KeyLimit(), help="Likewise, tokens of prompts and answers."
    )


key_rules = options_object(KeyRules, "rules")


@dataclass(frozen=True)
class TargetOptions:
    """The options of every command that looks after what a host serves. target: the word that names the host."""

    target: str
    fleet_file: Path | None = declared(fleet_option)
    output: Output = declared(answers(), Output())


target_options = options_object(TargetOptions, "at")


@dataclass(frozen=True)
class RunOptions:
    """The options of every command that changes hosts. guest_deadline, restart_deadline: in seconds."""

    fleet_file: Path | None = declared(fleet_option)
    output: Output = declared(answers(), Output())
    accepted: tuple[str, ...] = declared(accept_option, ())
    yes: bool = declared(yes_option, False)
    restart_deadline: float = option(
        "--restart-deadline",
        type=Duration(),
        default="30m",
        show_default=True,
        help="How long a host may take to come back after a restart.",
    )
    guest_deadline: float = option(
        "--guest-deadline",
        type=Duration(),
        default="5m",
        show_default=True,
        help="How long a guest may take to shut down.",
    )
    as_jsonl: bool = option(
        "--jsonl", "as_jsonl", is_flag=True, help="Print one JSON line per event, the outcome last."
    )

    @property
    def document(self) -> bool:
        """Tell whether stdout is for programs."""
        return self.output.shape != "table" or self.as_jsonl


run_options = options_object(RunOptions, "options")
