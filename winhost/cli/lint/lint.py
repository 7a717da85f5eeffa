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
from winhost.findings.finding import FileFinding, mask_secrets
from winhost.findings.show import finding_view
from winhost.knowledge import catalogue
from winhost.model.errors import Exit, Fault, UsageError, file_faults, visible
from winhost.model.files import TooLarge, is_binary, read_within, write_whole
from winhost.model.reason import Category, Evidence
from winhost.model.units import Bytes, KiB
from winhost.resources.host import other_system_error

if TYPE_CHECKING:
    from winhost.recipes.lint_recipe import LintedRecipe
    from winhost.recipes.recipe_case import RecipeTarget

_MAX_COMPOSE_FILES = 1000  # in one folder
_MAX_SETTINGS_SIZE = 64 * KiB
_MAX_RECIPE_SIZE = 512 * KiB  # a rendered project with its gateway takes half of this


@dataclass(frozen=True)
class Linted:
    """The findings in a file. host: the host whose facts were used, if any; evidence: the pieces that the findings
    cite.
    """

    file: str
    host: str | None
    findings: tuple[FileFinding, ...]
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True)
class LintedFile(Linted):
    """The findings in a recipe. form: its syntax; path: the path on which it will run, None if unstated; vllm: the
    version of each engine, None if unknown; written: the mended file; text: the mended text, if the input was no file.
    """

    form: str
    path: str | None
    vllm: tuple[str | None, ...]
    written: str | None = None
    text: str | None = None


@dataclass(frozen=True)
class LintInput:
    """A file or text to lint. name: as messages call it; file: None if the input is no file."""

    name: str
    file: Path | None
    data: bytes


# --- Files of WSL and of Ubuntu's installer -----------------------------------------------------------------------


def wslconfig(
    file: Path, facts: Path | None, version: str | None, facts_file: Path | None, strict: bool, output: Output
) -> int:
    from winhost.recipes.wslconfig_limits import wslconfig_limits  # loads all rules of hosts; other lints must not
    from winhost.wslconfig.format import WSLCONFIG  # other lints must not load it
    from winhost.wslconfig.rules import NOTHING_KNOWN, lint  # likewise

    wsl, limits = _parse_version(version, "2.7.14", "--wsl"), NOTHING_KNOWN
    if host_facts := read_named_facts(facts, facts_file):
        if host_facts.is_linux:
            raise other_system_error(host_facts, ".wslconfig")
        limits = wslconfig_limits(host_facts)
    findings = lint(_read_lint_file(file, _MAX_SETTINGS_SIZE).data, WSLCONFIG, version=wsl, host=limits)
    return _show_settings(file, host_facts.host if host_facts else None, findings, strict, output)


def wslconf(file: Path, version: str | None, strict: bool, output: Output) -> int:
    from winhost.wslconfig.format import WSLCONF  # other lints must not load it
    from winhost.wslconfig.rules import lint  # likewise

    wsl = _parse_version(version, "2.7.14", "--wsl")
    findings = lint(_read_lint_file(file, _MAX_SETTINGS_SIZE).data, WSLCONF, version=wsl)
    return _show_settings(file, None, findings, strict, output)


def autoinstall(
    file: Path, facts: Path | None, facts_file: Path | None, installer: str | None, strict: bool, output: Output
) -> int:
    from winhost.autoinstall.autoinstall_file import read_known_disks  # other lints must not load it
    from winhost.autoinstall.lint import lint_autoinstall  # likewise

    facts_path = named_facts(facts, facts_file)
    host, disks = read_known_disks(facts_path) if facts_path else (None, ())
    version = _parse_version(installer, "24.04.4", "--installer")
    findings = lint_autoinstall(_read_lint_file(file, _MAX_RECIPE_SIZE).data, installer=version, disks=disks)
    return _show_settings(file, host, findings, strict, output)


def _show_settings(file: Path, host: str | None, findings: Sequence[FileFinding], strict: bool, output: Output) -> int:
    linted = Linted(str(file), host, tuple(findings), _evidence(findings))
    return _show("lint", [(linted.file, linted)], RecipeOptions(strict=strict, output=output))


# --- Commands and files that start vLLM, and the settings of Docker and CDI for it ---------------------------------


def serve(words: tuple[str, ...], options: RecipeOptions) -> int:
    from winhost.recipes.lint_recipe import lint_recipe  # other lints must not load it

    target = _make_target(options, _parse_version(options.vllm, "0.33.0", "--vllm"))
    inputs = [_read_arguments((word,)) for word in words] if all(map(_names_file, words)) else [_read_arguments(words)]
    if len(inputs) > 1 and options.output.path:
        raise click.UsageError(f"-o names one file, and {len(inputs)} are linted: leave it out, or use --in-place")

    def lint_one(lint_input: LintInput) -> LintedFile | UsageError:
        target_with_files = replace(target, other_files=_read_other_compose_files(lint_input.file))
        lint_result = lint_recipe(lint_input.data, target_with_files, mend=options.mends)
        if lint_result.form is None or not (lint_result.versions or lint_result.findings):
            return _no_recipe_error([lint_input.name] if lint_input.file else words, lint_input, lint_result.form)
        return _write_mended(lint_input, lint_result, target, options)

    for lint_input in inputs:
        _check_mending(options, lint_input)
    results = [(lint_input.name, lint_one(lint_input)) for lint_input in inputs]
    if len(results) == 1 and isinstance(results[0][1], UsageError):
        raise results[0][1]
    return _show("recipe", results, options)


def docker_daemon(file: Path, options: RecipeOptions) -> int:
    from winhost.recipes.lint_recipe import lint_docker_daemon  # other lints must not load it

    target, lint_input = _make_target(options), _read_lint_file(file, _MAX_RECIPE_SIZE)
    _check_mending(options, lint_input)
    lint_result = lint_docker_daemon(lint_input.data, target, mend=options.mends)
    return _show("recipe", [(lint_input.name, _write_mended(lint_input, lint_result, target, options))], options)


def cdi(file: Path, options: RecipeOptions) -> int:
    from winhost.recipes.lint_recipe import lint_cdi  # other lints must not load it

    target, lint_input = _make_target(options), _read_lint_file(file, _MAX_RECIPE_SIZE)
    lint_result = lint_cdi(lint_input.data, target)
    return _show("recipe", [(lint_input.name, _write_mended(lint_input, lint_result, target, options))], options)


def _make_target(options: RecipeOptions, vllm: Version | None = None) -> "RecipeTarget":
    from winhost.compat.target import Target  # other lints must not load it
    from winhost.recipes.recipe_case import RecipeTarget  # likewise
    from winhost.resources.linux.read_only import LinuxSystem  # likewise
    from winhost.resources.windows.read_only import OsFamily  # likewise

    path, facts = options.path, read_named_facts(options.facts_file)
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


def _read_arguments(words: Sequence[str]) -> LintInput:
    """Read a file, standard input, or a command from the command line."""
    if len(words) == 1 and _names_file(words[0]):
        return _read_lint_file(Path(words[0]), _MAX_RECIPE_SIZE)
    text = words[0] if len(words) == 1 else shlex.join(words)
    return LintInput("command", None, text.encode("utf-8", "surrogateescape"))


def _names_file(word: str) -> bool:
    return word == STDIN or (word != "" and path_exists(word))


def _read_other_compose_files(file: Path | None) -> Mapping[str, str]:
    """Return the other compose files in the same folder that may complete this one, by name."""
    if file is None or "compose" not in file.name:
        return {}
    texts = {}
    with suppress(OSError):  # the account may enter the folder but not list it
        for each in islice(sorted(file.parent.glob("*compose*.y*ml")), _MAX_COMPOSE_FILES):
            with suppress(OSError, TooLarge):
                if each.name != file.name and each.is_file():
                    texts[each.name] = read_within(each, _MAX_SETTINGS_SIZE).decode("utf-8", "replace")
    return {name: text for name, text in texts.items() if "services:" in text and ("nvidia" in text or "gpu" in text)}


def _no_recipe_error(words: Sequence[str], lint_input: LintInput, form: str | None) -> UsageError:
    """Make the error for an argument that is no file, or for a file that starts no known engine."""
    from winhost.recipes.arguments import other_engines  # other lints must not load it

    word, text = visible(mask_secrets(words[0])[:80]), lint_input.data.decode("utf-8", "replace")
    is_one_word = len(words) == 1 and words[0] not in ("", STDIN) and " " not in words[0].strip()
    is_missing_file = lint_input.file is None and is_one_word
    engines = ", ".join(["vLLM", *(each.title for each in other_engines().values())])
    hint = "Name a file, or give the command in quotes: winhost lint serve 'docker run … vllm/vllm-openai …'"
    if form == "compose" and not re.search(r"^ +(?:image|build):", text, re.MULTILINE):
        hint = (
            "It completes another file: docker compose -f compose.yaml -f override.yaml config | winhost lint serve -"
        )
    elif form == "systemd" and not re.search(r"^ExecStart=", text, re.MULTILINE):
        hint = "It completes a unit: systemctl cat ollama | winhost lint serve -"
    return UsageError(
        "NoRecipe",
        what=f"cannot read {word}: no such file"
        if is_missing_file
        else f"{word if lint_input.file else 'this'} starts no engine that lint knows ({engines})",
        hint=hint,
    )


def _check_mending(options: RecipeOptions, lint_input: LintInput) -> None:
    """Refuse contradicting options for mended files. Raises click.UsageError."""
    if options.in_place and options.output.path:
        raise click.UsageError("--in-place and -o name two files: choose one")
    if options.in_place and lint_input.file is None:
        raise click.UsageError("--in-place needs a file; for other input, --fix shows the mended text")
    if options.output.path and not options.fix:
        raise click.UsageError("-o names the file that --fix writes: add --fix, or leave -o out")


def _write_mended(
    lint_input: LintInput, linted: "LintedRecipe", target: "RecipeTarget", options: RecipeOptions
) -> LintedFile:
    """Write the mended file, and return the result of the lint. A new file gets the mode of the original."""
    file, written, text = lint_input.file, None, None
    if options.mends and linted.mended != lint_input.data:
        if options.in_place and file:
            written = file
            write_whole(file, [linted.mended])
        elif written := options.output.path or (file.with_name(f"{file.stem}.mended{file.suffix}") if file else None):
            refuse_other_kind(written, "mended file", options.force)
            mode = stat.S_IMODE(file.stat().st_mode) if file else 0o600 if linted.secrets else 0o644
            write_whole(written, [linted.mended], mode=mode)
        else:
            text = mask_secrets(linted.mended.decode("utf-8", "replace"), linted.secrets)
    return LintedFile(
        file=lint_input.name,
        host=target.machine.facts.host if target.machine else None,
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


# --- Shared by all lints: options, output and the exit code ------------------------------------------------


def _read_lint_file(file: Path, max_size: Bytes) -> LintInput:
    """Read a file, or standard input. Raises UsageError (FileFaults)."""
    try:
        lint_input = LintInput(str(file), None if str(file) == STDIN else file, read_input(file, max_size))
    except TooLarge as error:
        raise file_faults([Fault(str(file), None, None, "", str(error))]) from None
    if is_binary(lint_input.data):
        raise file_faults([Fault(lint_input.name, None, None, "", "this is a binary file, not text")])
    return lint_input


def _parse_version(text: str | None, example: str, option: str) -> Version | None:
    """Parse the version of an option. example: a version for error messages. Raises click.BadParameter."""
    try:
        return None if text is None else Version(text)
    except InvalidVersion:
        raise click.BadParameter(
            f"{text!r:.80} is not a version; write it as {example}", param_hint=f"'{option}'"
        ) from None


def _show(kind: str, files: Sequence[tuple[str, Linted | UsageError]], options: RecipeOptions) -> int:
    """Show the findings in each file, the mended file, and the count. Return the exit code."""

    def remaining_findings(linted: Linted) -> list[FileFinding]:
        return [each for each in linted.findings if not (options.mends and each.fixed)]

    def exit_code(linted: Linted) -> int:
        remaining = remaining_findings(linted)
        failed = (options.strict and remaining) or _count(remaining, Category.DEFECT)
        return int(Exit.FAILURE if failed else Exit.SUCCESS)

    def show(linted: Linted) -> None:
        if linted is not files[0][1]:
            click.echo()
        _show_findings(visible(linted.file), linted.findings, options)
        if isinstance(linted, LintedFile) and options.mends:
            _show_mended(linted)
        if linted.findings:
            _show_count(linted.findings, remaining_findings(linted), exit_code(linted), strict=options.strict)

    return show_results(kind, options.output.shape, files, show, code=exit_code)


def _show_findings(name: str, findings: Sequence[FileFinding], options: RecipeOptions) -> None:
    """Show defects first, then advice under its own heading."""
    if not findings:
        say(f"{name}: nothing found")
    for category, heading in ((Category.DEFECT, ""), (Category.ADVICE, "Advice")):
        findings_of_category = [each for each in findings if each.severity.category is category]
        if findings_of_category and heading:
            if len(findings_of_category) < len(findings):
                click.echo()
            say(heading)
        for each in findings_of_category:
            finding = finding_view(
                each,
                "" if not each.fixed else "mended" if options.mends else "--fix does this",
                severity=each.severity.file_label,
                position=f"{name}:{each.line}:{each.column}",
                subject=each.subject,
                unverified=f"{each.lacks} is not known" if each.lacks else "",
                evidence=catalogue.evidence_of(each.evidence) if options.everything else (),
                in_full=True,
            )
            show_finding(finding)


def _show_mended(linted: LintedFile) -> None:
    click.echo()
    if linted.written:
        say(f"Written: {visible(linted.written)}")
    elif linted.text is not None:
        click.echo("\n".join(map(visible, linted.text.splitlines())))
    else:
        why = "none of this can be mended automatically" if linted.findings else "there is nothing to mend"
        say(f"Nothing is written: {why}.")


def _show_count(
    findings: Sequence[FileFinding], remaining: Sequence[FileFinding], exit_code: int, *, strict: bool
) -> None:
    """Show the last line: the number of defects and of advice, and the reason for the exit code."""
    counts = ""
    for label, category in (("Defects", Category.DEFECT), ("Advice", Category.ADVICE)):
        mended = _count(findings, category) - _count(remaining, category)
        counts += f"{label}: {_count(findings, category)}{f' ({mended} mended)' if mended else ''}. "
    if _count(remaining, Category.DEFECT):
        why = "there are defects"
    elif remaining:
        why = "--strict counts advice" if strict else "advice does not count without --strict"
    else:
        why = "all is mended"
    click.echo()
    say(f"{counts}Exit code {exit_code}: {why}.")


def _count(findings: Sequence[FileFinding], category: Category) -> int:
    return sum(each.severity.category is category for each in findings)
