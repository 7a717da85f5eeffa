"""Arguments and options that several commands share, each declared once."""

import os
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import Field, field, fields
from functools import wraps
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, cast, get_args

import click

from winhost.cli import completion
from winhost.cli.groups import log_options
from winhost.core.dataclass import dataclass
from winhost.model.durations import parse_age, parse_duration
from winhost.model.plan import RISKS

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
PATH = click.Path(path_type=Path, readable=False)
"""A file or folder. click does not check whether it exists: winhost's own error says how to make one."""


def fleet(command: F) -> F:
    """Add `--fleet`, `-v` and `--debug`, which every command has that connects to hosts."""
    return click.option(
        "--fleet",
        "fleet_file",
        metavar="FILE",
        type=PATH,
        help="The fleet file. Default: $WINHOST_FLEET, ./fleet.yaml, then your configuration folder.",
    )(log_options()(command))


class Number(click.FloatRange):
    """A number, which errors call 'number' instead of click's 'float range'."""

    name = "number"

    def _describe_range(self) -> str:
        """Return `1 to 256` for help and errors, instead of click's `1<=x<=256`."""
        return f"{self.min:g} or more" if self.max is None else f"{self.min:g} to {self.max:g}"


class WholeNumber(click.IntRange):
    """A whole number, which errors call 'whole number' instead of click's 'integer range'."""

    name = "whole number"

    def _describe_range(self) -> str:
        return f"{self.min} to {self.max}"


class Parsed(click.ParamType[T]):
    """A value that a function parses from text. The function's ValueError says what is wrong."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name, self._parse = name, parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        if not isinstance(value, str):
            return cast(T, value)  # click also passes values that are already converted
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


def _seconds(text: str) -> float:
    """Parse `90`, `10s`, `5m` or `1h`."""
    return parse_duration(int(text) if re.fullmatch(r"[0-9]{1,9}", text) else text)


def _size(text: str) -> int:
    """Parse `64GiB`, `33280MiB` or bytes."""
    number = text.replace(",", "").replace("_", "").strip().upper()
    digits = number.rstrip("BGIKM ")
    unit = number[len(digits) :].strip()
    if not (digits.isdecimal() and len(digits) <= _DIGITS and int(digits)) or unit not in _UNITS:
        raise ValueError(f"{text!r:.80} is not a size; write 64GiB, 33280MiB or bytes, more than 0")
    return int(digits) * _UNITS[unit]


_DIGITS = 18  # Windows counts bytes in 64 bits
_UNITS = {"": 1, "B": 1, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}


def _address_port(text: str) -> tuple[str, int]:
    """Parse `10.20.0.4:8443` or `[::1]:8443`."""
    address, _, port = text.rpartition(":")
    number = int(port) if re.fullmatch(r"[0-9]{1,5}", port) else 0
    try:
        if 1 <= number <= 65_535:
            return str(ip_address(address.strip("[]"))), number
    except ValueError:
        pass
    raise ValueError(f"{text!r:.80} is not ADDRESS:PORT, such as 10.20.0.4:8443")


def _key_limit(text: str) -> int | str:
    """Parse a number, `none`, or `default` for the limit that all keys have."""
    if text in ("none", "default"):
        return text
    if not re.fullmatch(r"[0-9]{1,10}", text) or not 1 <= int(text) <= _MAX_KEY_LIMIT:
        raise ValueError(f"{text!r:.80} is no whole number from 1 to {_MAX_KEY_LIMIT:,}, nor none or default")
    return int(text)


_MAX_KEY_LIMIT = 1_000_000_000
DURATION, AGE = Parsed("duration", _seconds), Parsed("duration", parse_age)
SIZE, ADDRESS_PORT = Parsed("size", _size), Parsed("ADDRESS:PORT", _address_port)
KEY_LIMIT = Parsed("number|none|default", _key_limit)


at_once = click.option(
    "--at-once",
    metavar="N",
    type=WholeNumber(1, 256),
    default=16,
    show_default=True,
    help="How many hosts to work on at the same time.",
)
facts_files = click.option(
    "--facts",
    "facts_files",
    metavar="FACTS",
    type=PATH,
    multiple=True,
    help="Use this facts file, or those in this folder, instead of reading a host.",
)
facts_file = click.option(
    "--facts",
    "facts_file",
    metavar="FACTS",
    type=PATH,
    help="The facts file of the host, or a folder with only that file.",
)
path = click.option(
    "--path",
    "variant",
    metavar="PATH",
    help="The option, as assess names it. Default: the recommended one.",
    **completion.PATHS,
)
path_filter = click.option("--path", metavar="PATH", help="Judge this path only.", **completion.PATHS)
linux_path = click.option(
    "--path",
    type=click.Choice(("wsl2", "dda", "dual-boot", "bare-metal")),
    help="How a Windows host gets its Linux. Default: wsl2, or dda where only that carries the workload.",
)
settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the path, for example network=nat of wsl2.",
)
allow_unverified = click.option(
    "--allow-unverified",
    is_flag=True,
    help="Go on even if a required fact could not be read or the option is unproven.",
)
restart_deadline = click.option(
    "--restart-deadline",
    type=DURATION,
    default="30m",
    show_default=True,
    help="How long to wait for a machine that restarts.",
)
model_filter = click.option(
    "--model", "models", metavar="MODEL", multiple=True, help="Only this model, by the name that clients use."
)
_KEY_NAME = re.compile(r"^[A-Za-z0-9._-]{1,64}=(?=(?:env|file|cmd|keyring):)")
client_key = click.option(
    "--api-key",
    metavar="[NAME=]REF",
    callback=lambda _context, _option, value: value and _KEY_NAME.sub("", value, count=1),
    help="A secret reference to an API key of the gateway, for example env:API_KEY. It may be written as for a plan, "
    "alice=env:API_KEY. Default: the one that winhost knows, if it knows one.",
)
token = click.option(
    "--token",
    metavar="REF",
    help="A secret reference to a token of the hub, which gated models need, for example env:HF_TOKEN.",
)


def workload(*, required: bool = False) -> Callable[[F], F]:
    """Make the option for the workload that hosts are judged by."""
    return click.option(
        "--workload", "workload_file", metavar="FILE", type=PATH, required=required, help="The workload to be served."
    )


# The default repeats the one of winhost.hub, which --help must not load.
hub = click.option(
    "--hub",
    metavar="URL",
    envvar="WINHOST_HUB",
    default="https://huggingface.co",
    help="Another hub with the API of huggingface.co. Default: $WINHOST_HUB, or https://huggingface.co.",
)


assume = click.option(
    "--assume",
    "assumed",
    multiple=True,
    metavar="FACT=VALUE[,...]",
    help="State facts that could not be read: os=win11-pro,ram=128GiB. What depends on them is marked as stated.",
)
# The choices repeat those of winhost.lab.lab, which --help must not load.
engine = click.option(
    "--engine",
    type=click.Choice(("contract", "pwsh")),
    default="contract",
    show_default=True,
    help="contract runs no PowerShell; pwsh runs the real scripts in the one on PATH or in WINHOST_PWSH.",
)
yes = click.option("--yes", is_flag=True, help="Do not ask whether to begin. Approvals are still asked for.")
force = click.option(
    "--force", is_flag=True, help="Overwrite an existing file that winhost refuses to replace otherwise."
)
hosts = click.argument("hosts", nargs=-1, metavar="HOST...", **completion.HOSTS)
hosts_or_facts = click.argument("sources", nargs=-1, metavar="HOST|FACTS...", **completion.HOSTS_AND_FILES)


def split_commas(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    """Split values at their commas."""
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


def split_choices(
    allowed: Sequence[str],
) -> Callable[[click.Context, click.Parameter, tuple[str, ...]], tuple[str, ...]]:
    """Return a callback that splits values at their commas, and refuses those that are not allowed."""

    def split(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
        choices = split_commas(context, option, values)
        for value in choices:
            if value not in allowed:
                raise click.BadParameter(f"{value!r} is none of: {', '.join(allowed)}")
        return choices

    return split


accept = click.option(
    "--accept",
    "accepted",
    multiple=True,
    metavar="RISK[,RISK...]",
    callback=split_choices(tuple(RISKS)),
    **completion.CONSENTS,
    help="Approve a risk of the plan: vm-stop, vm-turn-off, restart, headless, force-dismount, network, packages, "
    "containers, data.",
)


# ---- `-o`, which is the same on every command: the form of the answer, or a path to write to.
# `wide`, `json`, `yaml` and `name` are forms. Anything else is the path of the file or folder that the command writes,
# if it writes one. A file that is called like a form is written `./json`.

Form: TypeAlias = Literal["json", "yaml"]
Shape: TypeAlias = Literal["table", "wide", "json", "yaml", "name"]
FORMS = tuple(form for form in get_args(Shape) if form != "table")

_FORM_OPTIONS = re.compile(r"(?:^|\0)(?:--json|(?:-o\0?|--output[=\0])(?P<form>json|yaml))(?:\0|$)")


@dataclass(frozen=True)
class Output:
    """The form of a command's answer, and the path it writes to. folder: the path ends with `/`, so it is a folder."""

    shape: Shape = "table"
    path: Path | None = None
    folder: bool = False

    @property
    def form(self) -> Form | None:
        """Return the form of a document for programs."""
        return self.shape if self.shape in ("json", "yaml") else None

    @property
    def required_path(self) -> Path:
        """The path, for a command that needs one."""
        assert self.path is not None
        return self.path

    @property
    def wide(self) -> bool:
        return self.shape == "wide"


def output_options(
    writes: str | None = None, description: str = "", *, required: bool = False, wide: bool = False
) -> Callable[[F], F]:
    """Add `-o` and `--json`, which become one argument `output` of the command.

    writes: the metavar of the path that the command writes to, None if it writes no file; description: the help for
    that path; required: the command needs the path; wide: the command has columns that only `-o wide` shows.
    """
    metavar = f"FORMAT|{writes}" if writes else "FORMAT"
    forms = FORMS if wide else tuple(form for form in FORMS if form != "wide")
    text = f"the output format: {', '.join(forms[:-1])} or {forms[-1]}."
    text = f"{description} Or {text} May be given twice." if writes else text[0].upper() + text[1:]

    def decorate(command: F) -> F:
        @wraps(command)
        def call_with_output(*args: Any, outputs: tuple[str, ...], as_json: bool, **kwargs: Any) -> Any:
            output = _parse_output(outputs, as_json, bool(writes))
            if output.wide and not wide:
                raise click.BadParameter("'wide' has nothing more to show here", param_hint="-o")
            if kwargs.get("as_jsonl") and output.shape != "table":
                raise click.UsageError("-o or --json and --jsonl are two forms of one answer: choose one")
            if required and output.path is None:
                raise click.UsageError(f"Missing option '-o': name the {str(writes).lower()} to write.")
            return command(*args, output=output, **kwargs)

        return cast(F, as_json(shape(call_with_output)))

    shape = click.option("-o", "--output", "outputs", multiple=True, metavar=metavar, help=text)
    as_json = click.option("--json", "as_json", is_flag=True, help="The same as -o json.")
    return decorate


def _parse_output(values: tuple[str, ...], as_json: bool, writes_file: bool) -> Output:
    forms = [value for value in values if value in FORMS] + ["json"] * as_json
    paths = [value for value in values if value not in FORMS]
    if len(set(forms)) > 1:
        raise click.BadParameter(f"{' and '.join(forms)} are forms of one answer: choose one", param_hint="-o")
    if paths and not writes_file:
        raise click.BadParameter(
            f"{paths[0]!r} is none of {', '.join(FORMS)}, and this command writes no file", param_hint="-o"
        )
    if len(paths) > 1:
        raise click.BadParameter(f"{' and '.join(map(repr, paths))} are two destinations: choose one", param_hint="-o")
    shape: Any = forms[0] if forms else "table"
    if not paths:
        return Output(shape)
    return Output(shape, Path(paths[0]), paths[0].endswith(("/", os.sep)))


def requested_form(arguments: Sequence[str]) -> Form | None:
    """Return the form in which the arguments request errors, even if they are no valid command."""
    match = _FORM_OPTIONS.search("\0".join(arguments))
    if match is None:
        return None
    return "yaml" if match["form"] == "yaml" else "json"


# ---- options objects: dataclasses whose fields declare options


def declared(option: Callable[..., Any], default: Any = None) -> Any:
    """Return a field of an options object for an option that other commands have, too."""
    return field(default=default, metadata={"option": option})


def option(metavar: str | None, help_text: str, default: Any = None, **attributes: Any) -> Any:
    """Return a field of an options object with an option of its own. The option gets the name of the field and, for a
    path, its type; its help shows the default, if there is one.

    attributes: name: another name for the option; section: its heading in the help; setting: the setting of a path that
    the option chooses; and any argument of `click.option`.
    """
    metadata: dict[str, Any] = {key: attributes.pop(key) for key in ("name", "section", "setting") if key in attributes}
    default_options: dict[str, Any] = {"default": default, "show_default": True} if default else {}
    metadata["made_of"] = {"metavar": metavar, "help": help_text, **default_options, **attributes}
    return field(default=default, metadata=metadata)


def flag(help_text: str, **attributes: Any) -> Any:
    """Return such a field for an option without a value."""
    return option(None, help_text, False, is_flag=True, **attributes)


def repeated(metavar: str | None, help_text: str, default: tuple[Any, ...] = (), **attributes: Any) -> Any:
    """Return such a field for an option that may be repeated; its value is a tuple."""
    return option(metavar, help_text, default, multiple=True, **attributes)


def option_name(each: "Field[Any]") -> str:
    """Return the name of a field's option as it is typed, such as `--fleet`."""
    return str(each.metadata.get("name") or f"--{each.name.replace('_', '-')}")


def _click_option(each: "Field[Any]") -> Callable[..., Any] | None:
    if (made_of := each.metadata.get("made_of")) is None:
        return cast("Callable[..., Any] | None", each.metadata.get("option"))
    kind: dict[str, Any] = {"type": PATH} if Path in get_args(each.type) else {}
    return click.option(option_name(each), each.name, **{**kind, **made_of})


def options_object(
    kind: type[Any], name: str, leave_out: Collection[str] = (), section: str | None = None, **replacements: Any
) -> Callable[[F], F]:
    """Add the options that the fields of a dataclass declare to a command, and pass their values to it as one object.

    kind: the dataclass; name: the argument of the command that gets the object; leave_out: fields whose options are not
    added; section: the heading for options without one; replacements: by field, other options of this command.
    """
    object_fields = fields(kind)

    def decorate(command: F) -> F:
        @wraps(command)
        def call_with_object(*args: Any, **arguments: Any) -> Any:
            built = kind(**{each.name: arguments.pop(each.name) for each in object_fields if each.name in arguments})
            return command(*args, **{name: built}, **arguments)

        wrapped: Any = call_with_object
        for each in reversed(object_fields):
            if each.name not in leave_out and (add := replacements.get(each.name) or _click_option(each)):
                wrapped = add(wrapped)
                if heading := each.metadata.get("section") or section:
                    vars(wrapped.__click_params__[-1]).setdefault("section", heading)
        return cast(F, wrapped)

    return decorate


@dataclass(frozen=True)
class HostsAndFacts:
    """The hosts and facts files that a command reads. sources: arguments that name hosts, facts files or folders of
    them; facts_files: those of the option --facts.
    """

    sources: tuple[str, ...]
    facts_files: tuple[Path, ...] = ()
    fleet_file: Path | None = None
    at_once: int = 16

    @property
    def arguments(self) -> list[str]:
        """The arguments and options that name them, for another command."""
        return [*self.sources, *(argument for file in self.facts_files for argument in ("--facts", str(file)))]


hosts_and_facts = options_object(HostsAndFacts, "hosts")


@dataclass(frozen=True)
class KeyRules:
    """The models, limits and lifetime of an API key. None: not specified."""

    models: tuple[str, ...] = ()
    all_models: bool = False
    expires: str | None = option(
        "WHEN", "When the key stops counting: 30d, 12h, 2027-01-31, 2027-01-31T12:00Z (UTC) or never."
    )
    concurrent: int | str | None = option("N|none|default", "How many requests at a time.", type=KEY_LIMIT)
    requests_per_minute: int | str | None = option("N|none|default", "How many requests per minute.", type=KEY_LIMIT)
    tokens_per_minute: int | str | None = option(
        "N|none|default", "How many tokens of prompts and answers per minute.", type=KEY_LIMIT
    )


key_rules = options_object(KeyRules, "rules")


@dataclass(frozen=True)
class TargetOptions:
    """The options of every command that manages what a host serves. target: the name of the host."""

    target: str
    fleet_file: Path | None = declared(fleet)
    output: Output = declared(output_options(), Output())


target = options_object(TargetOptions, "options")


@dataclass(frozen=True)
class RunOptions:
    """The options of every command that changes hosts. guest_deadline, restart_deadline: in seconds."""

    fleet_file: Path | None = declared(fleet)
    output: Output = declared(output_options(), Output())
    accepted: tuple[str, ...] = declared(accept, ())
    yes: bool = declared(yes, False)
    restart_deadline: float = declared(restart_deadline)
    guest_deadline: float = option("DURATION", "How long a guest may take to shut down.", default="5m", type=DURATION)
    as_jsonl: bool = flag("Print one JSON line per event, the outcome last.", name="--jsonl")

    @property
    def document(self) -> bool:
        """Tell whether stdout is for programs."""
        return self.output.shape != "table" or self.as_jsonl


run_options = options_object(RunOptions, "options")
