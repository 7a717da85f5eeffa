"""The contents of a recipe in any form: engines of vLLM, each with its options, variables and container."""

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
    """One thing that is set. name: the full one, whatever was written; value: None for a bare flag; shown: where the
    value stands; texts: all that is written for it; by_default: the value is that of a variable that nobody set.
    """

    name: str
    value: str | None
    text: PlacedText
    shown: PlacedText | None
    texts: tuple[PlacedText, ...]
    written: str
    by_default: bool = False

    @classmethod
    def of(
        cls, name: str, text: PlacedText, shown: PlacedText | None, texts: tuple[PlacedText, ...], written: str
    ) -> "Setting":
        """A setting as it is written; of `${VARIABLE:-default}` the default is read, except where it is a secret."""
        if shown is None or is_secret(name):
            return cls(name, shown.value if shown else None, text, shown, texts, written)
        default = shown.with_defaults
        return cls(name, default.value, text, default, texts, written, by_default=default is not shown)

    @property
    def told(self) -> str:
        """Its value for people."""
        return f"{self.value or ''}{' (the default of its variable)' if self.by_default else ''}"

    @property
    def is_on(self) -> bool:
        """The value as one of vLLM's own switches reads it."""
        return (self.value or "1").strip().casefold() not in ("0", "false", "no", "off", "")


_SECRET = re.compile(r"(?:TOKEN|API_KEY|SECRET|PASSWORD|ACCESS_KEY(?:_ID)?)$")
SECRET_OPTIONS = ("--api-key", "--hf-token", "--ssl-keyfile-password")


def is_secret(name: str) -> bool:
    """An option or variable whose value is a secret."""
    return name in SECRET_OPTIONS or bool(_SECRET.search(name))


class Editor:
    """Changes a recipe in the form that it has. No edits mean that this cannot be changed automatically; so it is with
    everything where a form has no editor of its own.
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
    """One engine as the recipe starts it.

    where: for people, `service llm`; at: where it is written; kind: vllm, or of engines.yaml; known: whether its
    command is there, and not only its environment; entered: how its command begins, `vllm serve`, or nothing where the
    image has it; leads: its model is the first word behind that; container: by the name of docker's option, whatever
    the form; outside: variables of the shell that starts the container; words: its own, of an engine beside vLLM;
    branched: its script starts it at several places, and an option would have to be added at each; partial: another
    file, or another service, has the rest of it, and what is not here may be there;
    slips: what its reader found; probes: of a pod, by name; places: where else something stands that rules ask for.
    """

    form: RecipeForm
    where: str
    at: PlacedText
    kind: str = "vllm"
    editor: Editor = field(default_factory=Editor)
    known: bool = True
    entered: str = ""
    program: str = ""
    model: PlacedText | None = None
    leads: bool = False
    options: list[Setting] = field(default_factory=list)
    variables: list[Setting] = field(default_factory=list)
    container: list[Setting] = field(default_factory=list)
    in_container: bool = False
    outside: list[Setting] = field(default_factory=list)
    strays: list[PlacedText] = field(default_factory=list)
    slips: list[Observation] = field(default_factory=list)
    words: Sequence[PlacedText] = ()
    branched: bool = False
    partial: bool = False
    probes: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    places: dict[str, PlacedText] = field(default_factory=dict)

    def option(self, name: str) -> Setting | None:
        """The last one, which counts."""
        return _last(self.options, name)

    def variable(self, name: str) -> Setting | None:
        return _last(self.variables, name)

    def boxed(self, name: str) -> Setting | None:
        """Return the last setting of this name of its container."""
        return _last(self.container, name)

    def all_boxed(self, name: str) -> list[Setting]:
        return [each for each in self.container if each.name == name]

    def number(self, option: str, default: int = 1) -> int:
        """A whole number that an option has, else the default."""
        found = self.option(option)
        try:
            return int(found.value or "") if found else default
        except ValueError:
            return default

    @property
    def sleeps(self) -> bool:
        return self.option("--enable-sleep-mode") is not None

    @property
    def together(self) -> int:
        """The number of GPUs that hold one copy of the model."""
        return max(1, self.number("--tensor-parallel-size")) * max(1, self.number("--pipeline-parallel-size"))

    @property
    def more_variables(self) -> bool:
        """True where a file that was not read sets more variables."""
        return self.boxed("--env-file") is not None or self.boxed("EnvironmentFile") is not None

    @property
    def more_options(self) -> bool:
        """True where a file or the shell sets more options."""
        return self.option("--config") is not None or any("$" in word.value for word in self.strays)

    @property
    def spread(self) -> bool:
        """True where its GPUs are those of several machines, and this one starts only a part."""
        ray = self.option("--distributed-executor-backend")
        several = ("--nnodes", "--data-parallel-size-local", "--data-parallel-address", "--data-parallel-rank")
        return (
            self.where.startswith("LeaderWorkerSet")
            or (ray is not None and ray.value == "ray")
            or any(self.option(name) for name in several)
        )

    @property
    def gpus(self) -> int:
        """The number of GPUs of all copies."""
        return self.together * max(1, self.number("--data-parallel-size"))


def _last(settings: Iterable[Setting], name: str) -> Setting | None:
    return next((each for each in reversed(list(settings)) if each.name == name), None)


@dataclass(frozen=True)
class Recipe:
    """All engines of a file. unread: why something in it could not be read, with the offset; slips: of the file as a
    whole; template: what is not in it may come from where its values are.
    """

    form: RecipeForm
    engines: tuple[RecipeEngine, ...]
    unread: tuple[tuple[str, int], ...] = ()
    slips: tuple[Observation, ...] = ()
    template: bool = False
