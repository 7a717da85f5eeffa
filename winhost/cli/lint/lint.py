"""winhost lint: find faults in files that WSL, Ubuntu's installer, Docker and vLLM read without complaining.

Each command reads its file and calls its linter; one printer shows all findings.
"""

import re
import shlex
import stat
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click
from packaging.version import InvalidVersion, Version

from winhost.cli.envelope import show_results
from winhost.cli.lint.commands import RecipeOptions
from winhost.cli.named_files import STDIN, path_exists, read_input, read_named_facts
from winhost.cli.named_files import facts_file as named_facts
from winhost.cli.options import Output
from winhost.cli.output import refuse_other_kind, say, show_finding
from winhost.core.answers import if_known
from winhost.core.dataclass import dataclass
from winhost.findings.finding import FileFinding, hidden
from winhost.findings.show import shown
from winhost.knowledge import catalogue
from winhost.model.errors import Exit, Fault, UsageError, file_faults, visible
from winhost.model.files import TooLarge, is_binary, read_within, write_whole
from winhost.model.reason import Category, Evidence
from winhost.model.units import Bytes, KiB
from winhost.resources.host import of_other_system

if TYPE_CHECKING:
    from winhost.recipes.lint_recipe import LintedRecipe
    from winhost.recipes.recipe_case import RecipeTarget

_BESIDE = 1000  # compose files of one folder
_MOST_SETTINGS, _MOST = 64 * KiB, 512 * KiB  # a rendered project with its gateway has half of the second


@dataclass(frozen=True)
class Linted:
    """The findings in a file. host: whose facts were used, None where there were none; evidence: the pieces that the
    findings name.
    """

    file: str
    host: str | None
    findings: tuple[FileFinding, ...]
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class LintedFile(Linted):
    """The findings in a recipe. form: its syntax; path: the path that it is to run on, None if unstated; vllm: versions
    by engine, None if not known; written: the mended file; text: the mended text, if the input was no file.
    """

    form: str
    path: str | None
    vllm: tuple[str | None, ...]
    written: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class Given:
    """A file or text to lint. name: for people; file: None if it is no file."""

    name: str
    file: Path | None
    data: bytes


# --- Files of WSL and of Ubuntu's installer -----------------------------------------------------------------------


def wslconfig(
    file: Path, facts: Path | None, version: str | None, facts_file: Path | None, strict: bool, output: Output
) -> int:
    from winhost.recipes.wslconfig_limits import wslconfig_limits  # with all that judges a host
    from winhost.wslconfig.format import WSLCONFIG  # other lints must not load it
    from winhost.wslconfig.rules import NOTHING_KNOWN, lint  # likewise

    wsl, limits = _version(version, "2.7.14", "--wsl"), NOTHING_KNOWN
    if known := read_named_facts(facts, facts_file):
        if known.is_linux:
            raise of_other_system(known, ".wslconfig")
        limits = wslconfig_limits(known)
    found = lint(_given_file(file, _MOST_SETTINGS).data, WSLCONFIG, version=wsl, host=limits)
    return _show_settings(file, known.host if known else None, found, strict, output)


def wslconf(file: Path, version: str | None, strict: bool, output: Output) -> int:
    from winhost.wslconfig.format import WSLCONF  # other lints must not load it
    from winhost.wslconfig.rules import lint  # likewise

    wsl = _version(version, "2.7.14", "--wsl")
    found = lint(_given_file(file, _MOST_SETTINGS).data, WSLCONF, version=wsl)
    return _show_settings(file, None, found, strict, output)


def autoinstall(
    file: Path, facts: Path | None, facts_file: Path | None, installer: str | None, strict: bool, output: Output
) -> int:
    from winhost.autoinstall.autoinstall_file import read_known_disks  # other lints must not load it
    from winhost.autoinstall.lint import lint_autoinstall  # likewise

    named = named_facts(facts, facts_file)
    host, disks = read_known_disks(named) if named else (None, ())
    version = _version(installer, "24.04.4", "--installer")
    found = lint_autoinstall(_given_file(file, _MOST).data, installer=version, disks=disks)
    return _show_settings(file, host, found, strict, output)


def _show_settings(file: Path, host: str | None, findings: Sequence[FileFinding], strict: bool, output: Output) -> int:
    linted = Linted(str(file), host, tuple(findings), _evidence(findings))
    return _show("lint", [(linted.file, linted)], RecipeOptions(strict=strict, output=output))


# --- Commands and files that start vLLM, and the settings of Docker and CDI for it ---------------------------------


def serve(words: tuple[str, ...], asked: RecipeOptions) -> int:
    from winhost.recipes.lint_recipe import lint_recipe  # other lints must not load it

    target = _target(asked, _version(asked.vllm, "0.33.0", "--vllm"))
    texts = [_given((word,)) for word in words] if all(map(_is_file, words)) else [_given(words)]
    if len(texts) > 1 and asked.output.path:
        raise click.UsageError(f"-o names one file, and {len(texts)} are linted: leave it out, or use --in-place")

    def linted(given: Given) -> LintedFile | UsageError:
        beside = replace(target, beside=_compose_files(given.file))
        found = lint_recipe(given.data, beside, mend=asked.mends)
        if found.form is None or not (found.versions or found.findings):
            return _no_recipe([given.name] if given.file else words, given, found.form)
        return _mended(given, found, target, asked)

    for given in texts:
        _check_mending(asked, given)
    results = [(given.name, linted(given)) for given in texts]
    if len(results) == 1 and isinstance(results[0][1], UsageError):
        raise results[0][1]
    return _show("recipe", results, asked)


def docker_daemon(file: Path, asked: RecipeOptions) -> int:
    from winhost.recipes.lint_recipe import lint_docker_daemon  # other lints must not load it

    target, given = _target(asked), _given_file(file, _MOST)
    _check_mending(asked, given)
    found = lint_docker_daemon(given.data, target, mend=asked.mends)
    return _show("recipe", [(given.name, _mended(given, found, target, asked))], asked)


def cdi(file: Path, asked: RecipeOptions) -> int:
    from winhost.recipes.lint_recipe import lint_cdi  # other lints must not load it

    target, given = _target(asked), _given_file(file, _MOST)
    found = lint_cdi(given.data, target)
    return _show("recipe", [(given.name, _mended(given, found, target, asked))], asked)


def _target(asked: RecipeOptions, vllm: Version | None = None) -> "RecipeTarget":
    from winhost.compat.target import Target  # other lints must not load it
    from winhost.recipes.recipe_case import RecipeTarget  # likewise
    from winhost.resources.linux.read_only import LinuxSystem  # likewise
    from winhost.resources.windows.read_only import OsFamily  # likewise

    path, facts = asked.path, read_named_facts(asked.facts_file)
    if facts is None:
        return RecipeTarget(path, vllm)
    if facts.is_linux:
        where = "wsl2" if if_known(lambda: facts.the(LinuxSystem).wsl) else "linux"
        if path not in (None, where, "bare-metal" if where == "linux" else where):
            raise click.BadParameter(f"these facts are of a Linux, which is {where}", param_hint="--path")
        return RecipeTarget(where, vllm, Target(facts, "linux"))
    if path == "linux":
        raise click.BadParameter("these facts are of a Windows host", param_hint="--path")
    is_server = if_known(lambda: facts.os.family) in (OsFamily.SERVER, OsFamily.AZURE_LOCAL)
    where = path or ("dda" if is_server else "wsl2")
    return RecipeTarget(where, vllm, Target(facts, where))


def _given(words: Sequence[str]) -> Given:
    """Read a file, standard input, or the words of the command line."""
    if len(words) == 1 and _is_file(words[0]):
        return _given_file(Path(words[0]), _MOST)
    text = words[0] if len(words) == 1 else shlex.join(words)
    return Given("command", None, text.encode("utf-8", "surrogateescape"))


def _is_file(word: str) -> bool:
    return word == STDIN or (word != "" and path_exists(word))


def _compose_files(file: Path | None) -> Mapping[str, str]:
    """The other compose files in the same folder, any of which may complete this one."""
    if file is None or "compose" not in file.name:
        return {}
    texts = {}
    with suppress(OSError):  # a folder that may be entered and not listed
        for each in islice(sorted(file.parent.glob("*compose*.y*ml")), _BESIDE):
            with suppress(OSError, TooLarge):
                if each.name != file.name and each.is_file():
                    texts[each.name] = read_within(each, _MOST_SETTINGS).decode("utf-8", "replace")
    return {name: text for name, text in texts.items() if "services:" in text and ("nvidia" in text or "gpu" in text)}


def _no_recipe(words: Sequence[str], given: Given, form: str | None) -> UsageError:
    """The error for a word that is no file, or for a file that may be only a part of a recipe."""
    from winhost.recipes.words import other_engines  # other lints must not load it

    shown, text = visible(hidden(words[0])[:80]), given.data.decode("utf-8", "replace")
    meant = given.file is None and len(words) == 1 and words[0] not in ("", STDIN) and not words[0].strip().count(" ")
    read = ", ".join(["vLLM", *(each.title for each in other_engines().values())])
    hint = "Name a file, or give the command in quotes: winhost lint serve 'docker run … vllm/vllm-openai …'"
    if form == "compose" and not re.search(r"^ +(?:image|build):", text, re.MULTILINE):
        hint = (
            "It completes another file: docker compose -f compose.yaml -f override.yaml config | winhost lint serve -"
        )
    elif form == "systemd" and not re.search(r"^ExecStart=", text, re.MULTILINE):
        hint = "It completes a unit: systemctl cat ollama | winhost lint serve -"
    return UsageError(
        "NoRecipe",
        what=f"cannot read {shown}: no such file"
        if meant
        else f"{shown if given.file else 'this'} starts no engine that lint reads ({read})",
        hint=hint,
    )


def _check_mending(asked: RecipeOptions, given: Given) -> None:
    """Raises click.UsageError."""
    if asked.in_place and asked.output.path:
        raise click.UsageError("--in-place and -o name two files: choose one")
    if asked.in_place and given.file is None:
        raise click.UsageError("--in-place needs a file; --fix shows the mended text of what is none")
    if asked.output.path and not asked.fix:
        raise click.UsageError("-o names the file that --fix writes: add --fix, or leave -o out")


def _mended(given: Given, linted: "LintedRecipe", target: "RecipeTarget", asked: RecipeOptions) -> LintedFile:
    """The result of a lint, after writing the mended file. A new file gets the mode of the old one."""
    file, written, text = given.file, None, None
    if asked.mends and linted.mended != given.data:
        if asked.in_place and file:
            written = file
            write_whole(file, [linted.mended])
        elif written := asked.output.path or (file.with_name(f"{file.stem}.mended{file.suffix}") if file else None):
            refuse_other_kind(written, "mended file", asked.force)
            mode = stat.S_IMODE(file.stat().st_mode) if file else 0o600 if linted.secrets else 0o644
            write_whole(written, [linted.mended], mode=mode)
        else:
            text = hidden(linted.mended.decode("utf-8", "replace"), linted.secrets)
    return LintedFile(
        file=given.name,
        host=target.on.facts.host if target.on else None,
        findings=tuple(linted.findings),
        evidence=_evidence(linted.findings),
        form=str(linted.form),
        path=target.path,
        vllm=linted.versions,
        written=str(written) if written else None,
        text=text,
    )


def _evidence(findings: Sequence[FileFinding]) -> tuple[Evidence, ...]:
    return catalogue.evidence_of(dict.fromkeys(key for each in findings for key in each.evidence))


# --- Shared by all lints: options, what is shown, and the exit code ------------------------------------------------


def _given_file(file: Path, most: Bytes) -> Given:
    """Read a file, or standard input. Raises UsageError (FileFaults)."""
    try:
        given = Given(str(file), None if str(file) == STDIN else file, read_input(file, most))
    except TooLarge as large:
        raise file_faults([Fault(str(file), None, None, "", str(large))]) from None
    if is_binary(given.data):
        raise file_faults([Fault(given.name, None, None, "", "this is a binary file, and no text")])
    return given


def _version(text: str | None, example: str, option: str) -> Version | None:
    """Parse the version of an option. example: shows in errors how to write it."""
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise click.BadParameter(
            f"{text!r:.80} is not a version; write it as {example}", param_hint=f"'{option}'"
        ) from None


def _show(kind: str, files: Sequence[tuple[str, Linted | UsageError]], asked: RecipeOptions) -> int:
    """Show the findings in each file, what was mended, and the count. Returns the exit code."""

    def left_in(linted: Linted) -> list[FileFinding]:
        return [each for each in linted.findings if not (asked.mends and each.fixed)]

    def code(linted: Linted) -> int:
        left = left_in(linted)
        return int(Exit.FAILURE if (asked.strict and left) or _count(left, Category.DEFECT) else Exit.SUCCESS)

    def show(linted: Linted) -> None:
        if linted is not files[0][1]:
            click.echo()
        _show_findings(visible(linted.file), linted.findings, asked)
        if isinstance(linted, LintedFile) and asked.mends:
            _show_mended(linted)
        if linted.findings:
            _show_count(linted.findings, left_in(linted), code(linted), strict=asked.strict)

    return show_results(kind, asked.output.shape, files, show, code=code)


def _show_findings(name: str, findings: Sequence[FileFinding], asked: RecipeOptions) -> None:
    """Show defects, then advice under its own heading."""
    if not findings:
        say(f"{name}: nothing found")
    for category, heading in ((Category.DEFECT, ""), (Category.ADVICE, "Advice")):
        some = [each for each in findings if each.severity.category is category]
        if some and heading:
            if len(some) < len(findings):
                click.echo()
            say(heading)
        for each in some:
            told = shown(
                each,
                "" if not each.fixed else "mended" if asked.mends else "--fix does this",
                severity=each.severity.in_file,
                position=f"{name}:{each.line}:{each.column}",
                subject=each.subject,
                unverified=f"{each.lacks} is not known" if each.lacks else "",
                evidence=catalogue.evidence_of(each.evidence) if asked.everything else (),
                in_full=True,
            )
            show_finding(told)


def _show_mended(linted: LintedFile) -> None:
    click.echo()
    if linted.written:
        say(f"Written: {visible(linted.written)}")
    elif linted.text is not None:
        click.echo("\n".join(map(visible, linted.text.splitlines())))
    else:
        why = "none of this can be mended by itself" if linted.findings else "there is nothing to mend"
        say(f"Nothing is written: {why}.")


def _show_count(findings: Sequence[FileFinding], left: Sequence[FileFinding], code: int, *, strict: bool) -> None:
    """Show the last line: the number of each kind, and the reason for the exit code."""
    said = ""
    for label, category in (("Defects", Category.DEFECT), ("Advice", Category.ADVICE)):
        mended = _count(findings, category) - _count(left, category)
        said += f"{label}: {_count(findings, category)}{f' ({mended} mended)' if mended else ''}. "
    if _count(left, Category.DEFECT):
        why = "there are defects"
    elif left:
        why = "--strict counts advice" if strict else "advice does not count without --strict"
    else:
        why = "all is mended"
    click.echo()
    say(f"{said}Exit code {code}: {why}.")


def _count(findings: Sequence[FileFinding], category: Category) -> int:
    return sum(each.severity.category is category for each in findings)
