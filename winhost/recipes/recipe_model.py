"""The contents of a recipe in any form: engines with their options, variables and container."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from winhost.core.dataclass import dataclass
from winhost.findings.finding import Observation, TextEdit
from winhost.recipes.recipe_text import PlacedText


class RecipeForm(StrEnum):
    """The format of a recipe."""

    COMMAND = "command"
    COMPOSE = "compose"
    KUBERNETES = "kubernetes"
    HELM = "helm"
    SYSTEMD = "systemd"
    QUADLET = "quadlet"
    ENVIRONMENT = "environment"
    CONFIG = "config"


@dataclass(frozen=True)
class Setting:
    """An option, variable or container setting. name: the full name, also if an abbreviation was written; value: None
    for a flag; text: its name; value_text: its value; texts: everything that is written for it; written: the name as it
    is written; by_default: the value is the default of a variable.
    """

    name: str
    value: str | None
    text: PlacedText
    value_text: PlacedText | None
    texts: tuple[PlacedText, ...]
    written: str
    by_default: bool = False

    @classmethod
    def parse(
        cls, name: str, text: PlacedText, shown: PlacedText | None, texts: tuple[PlacedText, ...], written: str
    ) -> "Setting":
        """Make a setting from text. `${VARIABLE:-default}` becomes its default, unless the setting is a secret."""
        if shown is None or is_secret(name):
            return cls(name, shown.value if shown else None, text, shown, texts, written)
        default = shown.with_defaults
        return cls(name, default.value, text, default, texts, written, by_default=default is not shown)

    @property
    def display_value(self) -> str:
        """The value, for people."""
        return f"{self.value or ''}{' (the default of its variable)' if self.by_default else ''}"

    @property
    def is_on(self) -> bool:
        """True if vLLM reads the value of a switch as on."""
        return (self.value or "1").strip().casefold() not in ("0", "false", "no", "off", "")


_SECRET = re.compile(r"(?:TOKEN|API_KEY|SECRET|PASSWORD|ACCESS_KEY(?:_ID)?)$")
SECRET_OPTIONS = ("--api-key", "--hf-token", "--ssl-keyfile-password")


def is_secret(name: str) -> bool:
    """Tell whether the value of an option or variable is a secret."""
    return name in SECRET_OPTIONS or bool(_SECRET.search(name))


class Editor:
    """Makes edits of a recipe in its form. An empty result means that the change cannot be made automatically; this
    base class makes none.
    """

    def remove(self, setting: Setting) -> Sequence[TextEdit]:
        return ()

    def add_option(self, words: str) -> Sequence[TextEdit]:
        return ()

    def add_variable(self, name: str, value: str) -> Sequence[TextEdit]:
        return ()

    def add_to_container(self, name: str, value: str) -> Sequence[TextEdit]:
        return ()


@dataclass
class RecipeEngine:
    """An engine that a recipe starts.

    label: for people, such as `service llm`; position: where it is written; kind: vllm, or a key of engines.yaml;
    has_command: the recipe has its command, not only its environment; entry: how the command begins, such as `vllm
    serve`, empty if the image has that; model_first: the model is the first argument; container: settings by the names
    of docker's options, in every form; shell_variables: variables of the shell that starts the container; strays:
    arguments that belong to no option; slips: mistakes that the reader found; words: the arguments of an engine other
    than vLLM; has_branches: a script starts the engine at several places, each of which would need a new option;
    partial: another file or service has the rest, so that missing settings may be there; probes: of a pod, by name;
    positions: further positions that rules need, by name.
    """

    form: RecipeForm
    label: str
    position: PlacedText
    kind: str = "vllm"
    editor: Editor = field(default_factory=Editor)
    has_command: bool = True
    entry: str = ""
    program: str = ""
    model: PlacedText | None = None
    model_first: bool = False
    options: list[Setting] = field(default_factory=list)
    variables: list[Setting] = field(default_factory=list)
    container: list[Setting] = field(default_factory=list)
    in_container: bool = False
    shell_variables: list[Setting] = field(default_factory=list)
    strays: list[PlacedText] = field(default_factory=list)
    slips: list[Observation] = field(default_factory=list)
    words: Sequence[PlacedText] = ()
    has_branches: bool = False
    partial: bool = False
    probes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    positions: dict[str, PlacedText] = field(default_factory=dict)

    def option(self, name: str) -> Setting | None:
        """Return the last option with this name, which takes effect."""
        return _last(self.options, name)

    def variable(self, name: str) -> Setting | None:
        return _last(self.variables, name)

    def container_setting(self, name: str) -> Setting | None:
        """Return the last setting with this name of the container."""
        return _last(self.container, name)

    def container_settings(self, name: str) -> list[Setting]:
        return [each for each in self.container if each.name == name]

    def number(self, option: str, default: int = 1) -> int:
        """Return an option's value as a whole number, else the default."""
        found = self.option(option)
        try:
            return int(found.value or "") if found else default
        except ValueError:
            return default

    @property
    def sleeps(self) -> bool:
        return self.option("--enable-sleep-mode") is not None

    @property
    def gpus_per_copy(self) -> int:
        """The number of GPUs that hold one copy of the model."""
        return max(1, self.number("--tensor-parallel-size")) * max(1, self.number("--pipeline-parallel-size"))

    @property
    def has_other_variables(self) -> bool:
        """True if a file that was not read sets further variables."""
        return self.container_setting("--env-file") is not None or self.container_setting("EnvironmentFile") is not None

    @property
    def has_other_options(self) -> bool:
        """True if a file or the shell sets further options."""
        return self.option("--config") is not None or any("$" in word.value for word in self.strays)

    @property
    def spans_machines(self) -> bool:
        """True if its GPUs are on several machines, of which this recipe starts one."""
        ray = self.option("--distributed-executor-backend")
        several = ("--nnodes", "--data-parallel-size-local", "--data-parallel-address", "--data-parallel-rank")
        return (
            self.label.startswith("LeaderWorkerSet")
            or (ray is not None and ray.value == "ray")
            or any(self.option(name) for name in several)
        )

    @property
    def gpus(self) -> int:
        """The number of GPUs of all copies."""
        return self.gpus_per_copy * max(1, self.number("--data-parallel-size"))


def _last(settings: Iterable[Setting], name: str) -> Setting | None:
    return next((each for each in reversed(list(settings)) if each.name == name), None)


@dataclass(frozen=True)
class Recipe:
    """The engines of a file. unread: why parts of the file could not be read, with their offsets; slips: mistakes that
    belong to no engine; template: the file is a template, so that missing settings may come from its values.
    """

    form: RecipeForm
    engines: tuple[RecipeEngine, ...]
    unread: tuple[tuple[str, int], ...] = ()
    slips: tuple[Observation, ...] = ()
    template: bool = False
