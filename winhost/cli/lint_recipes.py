"""winhost lint serve, docker-daemon, cdi: what somebody wrote by themselves, held against what is known."""

import shlex
import stat
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click
from packaging.version import Version

from winhost.cli.envelope import show_results
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.output import say
from winhost.cli.outputs import Output
from winhost.cli.overwrite import refuse_other_kind
from winhost.cli.show_findings import Telling, content, show_count, show_findings, version
from winhost.compat.target import Target
from winhost.core.answers import MissingFact
from winhost.core.dataclass import dataclass
from winhost.findings.finding import Finding, hidden
from winhost.model.errors import UsageError, visible
from winhost.model.files import write_whole
from winhost.model.units import KiB
from winhost.recipes.lint_recipe import LintedRecipe, lint_cdi, lint_docker_daemon, lint_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.resources.factsfile import read_facts
from winhost.resources.host import HostFacts
from winhost.resources.linux.linux_system import LinuxSystem
from winhost.resources.windows.operating_system import OsFamily

STDIN, COMMAND = "-", "command"
T = TypeVar("T")
_SERVERS = (OsFamily.SERVER, OsFamily.AZURE_LOCAL)
_MOST = 512 * KiB  # a rendered project with its gateway has half of it


@dataclass(frozen=True)
class LintedFile:
    """The findings in a file. form: how it is written; path: where it is to run, None where nobody says; vllm: by
    engine, None where not known; written: the file with what could be mended; text: the same of what is no file.
    """

    file: str
    form: str
    path: str | None
    vllm: tuple[str | None, ...]
    findings: tuple[Finding, ...]
    written: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Mending:
    """The request to mend a file, and where to write it. place: None for beside the file."""

    wanted: bool
    in_place: bool = False
    place: Path | None = None
    force: bool = False


@dataclass(frozen=True)
class Given:
    """A file or text to lint: its name for people, the file where it is one, and its content."""

    name: str
    file: Path | None
    data: bytes


def serve(
    words: tuple[str, ...],
    facts_file: Path | None,
    path: str | None,
    vllm: str | None,
    fix: bool,
    in_place: bool,
    force: bool,
    everything: bool,
    strict: bool,
    output: Output,
) -> int:
    """Check how somebody starts vLLM."""
    target = _target(facts_file, path, version(vllm, "0.33.0", "--vllm"))
    given = _given(words)
    mending = _mending(fix, in_place, force, output, given.file)
    linted = lint_recipe(given.data, target, mend=mending.wanted)
    if linted.form is None or not (linted.versions or linted.findings):
        raise _no_recipe(words, given.file)
    return _show(given, linted, target, mending, Telling(strict, everything, mending.wanted), output)


def docker_daemon(
    file: Path,
    facts_file: Path | None,
    path: str | None,
    fix: bool,
    in_place: bool,
    force: bool,
    everything: bool,
    strict: bool,
    output: Output,
) -> int:
    """Check the settings of Docker."""
    target, mending = _target(facts_file, path), _mending(fix, in_place, force, output, file)
    given = Given(str(file), file, content(file, _MOST))
    linted = lint_docker_daemon(given.data, target, mend=mending.wanted)
    return _show(given, linted, target, mending, Telling(strict, everything, mending.wanted), output)


def cdi(file: Path, facts_file: Path | None, path: str | None, everything: bool, strict: bool, output: Output) -> int:
    """Check a specification of CDI."""
    target, given = _target(facts_file, path), Given(str(file), file, content(file, _MOST))
    linted, mending = lint_cdi(given.data, target), Mending(wanted=False)
    return _show(given, linted, target, mending, Telling(strict, everything, mending.wanted), output)


# --- What is asked --------------------------------------------------------------------------------------------------


def _target(facts_file: Path | None, path: str | None, vllm: Version | None = None) -> RecipeTarget:
    named = named_facts(None, facts_file, "--facts")
    if named is None:
        return RecipeTarget(path, vllm)
    facts = HostFacts(read_facts(named))
    if facts.is_linux:
        where = "wsl2" if _known(lambda: facts.the(LinuxSystem).wsl) else "linux"
        if path not in (None, where, "bare-metal" if where == "linux" else where):
            raise click.BadParameter(f"these facts are of a Linux, which is {where}", param_hint="--path")
        return RecipeTarget(where, vllm, Target(facts, "linux"))
    if path == "linux":
        raise click.BadParameter("these facts are of a Windows host", param_hint="--path")
    where = path or ("dda" if _known(lambda: facts.os.family) in _SERVERS else "wsl2")
    return RecipeTarget(where, vllm, Target(facts, where))


def _known(read: Callable[[], T]) -> T | None:
    try:
        return read()
    except MissingFact:
        return None


def _given(words: Sequence[str]) -> Given:
    """A file, what comes in, or what stands on the command line."""
    if len(words) == 1 and _is_file(words[0]):
        return Given(words[0], Path(words[0]), content(Path(words[0]), _MOST))
    if tuple(words) == (STDIN,):
        if sys.stdin.isatty():
            say("Paste it, then end it with Ctrl-D (on Windows Ctrl-Z and Enter).", err=True)
        return Given(STDIN, None, sys.stdin.buffer.read(_MOST))
    text = words[0] if len(words) == 1 else shlex.join(words)
    return Given(COMMAND, None, text.encode("utf-8", "surrogateescape"))


def _is_file(word: str) -> bool:
    try:
        return word != STDIN and Path(word).exists()
    except (OSError, ValueError):  # longer than a name can be
        return False


def _no_recipe(words: Sequence[str], file: Path | None) -> UsageError:
    """A single word that is no file was mostly meant for one."""
    shown = visible(hidden(words[0])[:80])
    meant = file is None and len(words) == 1 and not words[0].strip().count(" ") and words[0] != STDIN
    return UsageError(
        "NoRecipe",
        what=f"cannot read {shown}: no such file"
        if meant
        else f"{shown if file else 'this'} starts no engine that lint reads",
        hint="Name a file, or give the command in quotes: winhost lint serve 'docker run … vllm/vllm-openai …'",
    )


def _mending(fix: bool, in_place: bool, force: bool, output: Output, file: Path | None) -> Mending:
    if in_place and output.path:
        raise click.UsageError("--in-place and -o are two places: choose one")
    if in_place and file is None:
        raise click.UsageError("--in-place needs a file; --fix shows the mended text of what is none")
    return Mending(fix or in_place or output.path is not None, in_place, output.path, force)


# --- What is shown --------------------------------------------------------------------------------------------------


def _show(
    given: Given, linted: LintedRecipe, target: RecipeTarget, mending: Mending, telling: Telling, output: Output
) -> int:
    written = _write(given, linted, mending)
    text = None
    if mending.wanted and written is None and linted.mended != given.data:
        text = hidden(linted.mended.decode("utf-8", "replace"), linted.secrets)
    place = str(written) if written else None
    result = LintedFile(given.name, str(linted.form), target.path, linted.versions, linted.findings, place, text)
    show_results("recipe", output.shape, [(given.name, result)], lambda one: _say(one, telling))
    return telling.exit_code(linted.findings)


def _write(given: Given, linted: LintedRecipe, mending: Mending) -> Path | None:
    """The mended file, where there is something to mend. A new one may be read by whoever may read the old one."""
    file = given.file
    if not mending.wanted or linted.mended == given.data:
        return None
    if mending.in_place and file:
        write_whole(file, [linted.mended])
        return file
    place = mending.place or (file.with_name(f"{file.stem}.mended{file.suffix}") if file else None)
    if place is not None:
        refuse_other_kind(place, "mended file", mending.force)
        mode = stat.S_IMODE(file.stat().st_mode) if file else 0o600 if linted.secrets else 0o644
        write_whole(place, [linted.mended], mode=mode)
    return place


def _say(result: LintedFile, telling: Telling) -> None:
    show_findings(result.file, result.findings, telling)
    if result.written or result.text is not None:
        click.echo()
    if result.written:
        say(f"Written: {visible(result.written)}")
    if result.text is not None:
        click.echo("\n".join(map(visible, result.text.splitlines())))
    show_count(result.findings, telling)
