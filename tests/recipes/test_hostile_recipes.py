"""Hostile input: whatever is pasted is read, its secrets stay, and a mend touches nothing but what it names."""

import json
import re
import shlex
from collections.abc import Callable
from cProfile import Profile
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.findings.linted import linted_recipe, target_of
from tests.recipes.test_recipes import EVERY
from tests.rows import each_row
from winhost.recipes.command_editor import replace_value
from winhost.recipes.lint_recipe import lint_cdi, lint_docker_daemon, lint_recipe, read_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.recipes.recipe_text import SourceFile
from winhost.recipes.shell_words import ShellKind, split_commands
from winhost.recipes.yaml_nodes import parse_documents

NOWHERE = RecipeTarget()
WSL = RecipeTarget("wsl2")
# What shells treat as something else than a letter, and what is near to it.
SIGNS = st.text(alphabet="ab-=.:/\\\"'` ^$(){}<>|&;#\n\r\t\u201c\u2019\u2013\ufeff\x1b\x00é", max_size=60)


def words_of(text: str, shell: ShellKind = ShellKind.SH) -> list[str]:
    found, _ = split_commands(SourceFile(text, "utf-8", b"").all_text, shell)
    return [word.value for command in found for word in command.words]


@given(st.text(alphabet="abc -=./\\\"' ", max_size=40))
@example('a\\ b \'c d\' "e\\"f" "g\\h"')
def test_words_are_those_of_a_shell(text: str) -> None:
    """The standard library splits text alike that has neither operators nor continuation lines. winhost drops a
    continuation at the end of the text, also with blanks behind it, where a shell would see an escaped blank.
    """
    if re.search(r"(?<!\\)(?:\\\\)*\\ +$", text):
        return
    try:
        wanted = shlex.split(text)
    except ValueError:
        return  # a quote is open, or a backslash at the end
    assert words_of(text) == wanted


@given(st.lists(st.text(alphabet="ab \"'\\$`^é", min_size=1, max_size=8), min_size=1, max_size=4))
def test_what_is_quoted_comes_back(words: list[str]) -> None:
    assert words_of(shlex.join(words)) == words


@pytest.mark.parametrize("shell", ShellKind)
@given(text=SIGNS)
def test_every_place_is_where_the_character_stands(shell: ShellKind, text: str) -> None:
    found, slips = split_commands(SourceFile(text, "utf-8", b"").all_text, shell)
    for command in found:
        for word in command.words:
            assert 0 <= word.start <= word.end <= len(text)
            assert list(word.offsets) == sorted(word.offsets)
            dashes = word.value[:2] == "--" and text[word.start : word.start + 1] not in ("-", "")
            letters = [text[place] for place in word.offsets[2 if dashes else 0 :]]
            assert letters == list(word.value[2 if dashes else 0 :])
    assert all(0 <= slip.position <= len(text) for slip in slips)


@pytest.mark.parametrize("style", [None, "'", '"', "|", ">"])
@given(value=st.text(alphabet="ab -=:#'\"\\\\\n{[,&*%\u00e9", min_size=1, max_size=60))
@example(value="--model a \\\\\n--dtype 'b'\n\n--seed 1\n")
def test_a_word_within_yaml_is_replaced_where_it_stands(style: str | None, value: str) -> None:
    """Another parser reads the value with that word replaced, for every style of scalar."""
    text = yaml.dump({"a": 1, "k": {"v": value}}, default_style=style, width=30, allow_unicode=True)
    (document,) = parse_documents(SourceFile(text, "utf-8", b""))
    scalar = document.get("k", "v").text
    assert scalar.value == value
    for word in re.finditer(r"[ab=é-]+", value):
        part = scalar.part(*word.span())
        if not part.is_contiguous:
            continue
        edited = SourceFile(text, "utf-8", b"").edited(replace_value(part, "z" * len(word[0])))
        assert yaml.safe_load(edited)["k"]["v"] == value[: word.start()] + "z" * len(word[0]) + value[word.end() :]


@given(SIGNS, st.sampled_from(["vllm serve m ", "docker run -v a:b vllm/vllm-openai:v0.33.0 ", "", "A=1 "]))
def test_nothing_breaks_it(text: str, before: str) -> None:
    for data in ((before + text).encode("utf-8", "surrogatepass"), text.encode("utf-16")):
        lint_recipe(data, WSL, mend=True)
        lint_docker_daemon(data, WSL, mend=True)
        lint_cdi(data, WSL)


@given(st.binary(max_size=80))
def test_bytes_that_are_no_text_stay(data: bytes) -> None:
    whole = b"VLLM_LOGGING_LEVEL=INFO\n# " + data.replace(b"\n", b"") + b"\nVLLM_SERVER_DEV_MODE=0\n"
    assert lint_recipe(whole, NOWHERE, mend=True).mended == whole
    assert SourceFile.decode(data).edited([]) == data


# What each is when it is so large; twice as large it means the same.
BOMBS: dict[str, Callable[[int], str]] = {
    "depth": lambda size: f"services: {'[' * 300 * size}",
    "depth in JSON": lambda size: "[" * 300 * size,
    "an alias of itself": lambda size: "services: &a\n" + "  vllm: *a\n" * size,
    "a merge of itself": lambda size: (
        "services:\n" + "".join(f"  v{n}: &a{n}\n    <<: *a{n}\n    image: vllm/vllm-openai\n" for n in range(size))
    ),
    "laughs": lambda size: (
        "services:\n  a0: &a0 x\n"
        + "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 5 * size))
    ),
    "shells in shells": lambda size: "sh -c " + "\"sh -c '" * 25 * size + "vllm serve m",
    "a tag": lambda size: "services:\n" + "  vllm: !!python/object/apply:os.system [id]\n" * size,
    "a null": lambda size: "services:\n" + "".join(f"  vllm{n}:\n" for n in range(size)),
    "wrong kinds": lambda size: (
        "services:\n  vllm: [1, 2]\n"
        + "  b: {image: [x], command: {a: b}, environment: 3, ports: {a: 1}, deploy: []}\n" * size
    ),
    "a pod of wrong kinds": lambda size: (
        "kind: Pod\nspec: {volumes: 3, containers: ["
        + "1, {name: [x], image: vllm/vllm-openai, args: {a: 1}, env: [1], volumeMounts: [3]}, " * size
        + "]}\n"
    ),
    "long": lambda size: "vllm serve m " + "--a " * 100 * size,
}


def work(bomb: str) -> int:
    """Calls of functions, counted by the interpreter: time would say how busy the machine is."""
    data = bomb.encode()
    with Profile() as counted:
        lint_recipe(data, WSL, mend=True)
        lint_docker_daemon(data, WSL, mend=True)
        lint_cdi(data, WSL)
    return sum(each.callcount for each in counted.getstats())


@pytest.mark.costly
@each_row("name", BOMBS)
def test_a_bomb_is_read_or_refused_and_one_twice_as_large_takes_twice_the_work(name: str) -> None:
    work(BOMBS["a null"](1))  # catalogues are read once
    once, twice = work(BOMBS[name](1)), work(BOMBS[name](2))
    assert twice < 3 * once
    assert twice < 5_000_000


@each_row("lint", [lint_recipe, lint_docker_daemon])
def test_depth_that_no_stack_holds_is_refused(lint: Callable[..., Any]) -> None:
    lint(b"services: " + b"[" * 1_500, WSL, mend=True)
    lint(b"[" * 20_000, WSL, mend=True)


@pytest.mark.costly
@given(st.from_regex(r"[A-Za-z0-9+/_-]{6,30}", fullmatch=True))
def test_a_secret_is_in_no_finding(secret: str) -> None:
    """Wherever it stands; `mended` is the user's own text."""
    value = f"zq{secret}qz"
    for text in (
        f"vllm serve m --api-key {value} --dtype {value} {value}",
        f"docker run -e HF_TOKEN={value} -e VLLM_API_KEY={value} vllm/vllm-openai:{value} --model m --port {value}",
        f"services:\n  a:\n    image: vllm/vllm-openai\n    environment: {{HF_TOKEN: '{value}'}}\n"
        f"    command: --model {value}x --port {value}",
        f"[Service]\nEnvironment=VLLM_API_KEY={value}\nExecStart={value}/vllm serve {value} {value}\n",
        f"VLLM_API_KEY={value}\nVLLM_USE_V1={value}\n",
    ):
        found = lint_recipe(text.encode(), WSL)
        assert found.findings
        assert value not in str(found.findings)


def grown(line: str, other: str) -> bool:
    """Tell whether other is this line, with nothing or something put into it."""
    added = len(other) - len(line)
    return added >= 0 and any(other == line[:at] + other[at : at + added] + line[at:] for at in range(len(line) + 1))


@pytest.mark.costly
@each_row("name", EVERY)
def test_a_mend_changes_only_the_lines_concerned(name: str) -> None:
    """A line that no finding with a mend names, nor one beside it, is as it was, if nothing was put into it."""
    linter, case = EVERY[name]
    for newline in ("\n", "\r\n"):
        text = case["text"].replace("\r\n", "\n").replace("\n", newline)
        data, found = text.encode(), linted_recipe({**case, "text": text, "encoding": "utf-8"}, linter)
        before, after = data.decode().splitlines(keepends=True), found.mended.decode().splitlines(keepends=True)
        named = {each.line for each in found.findings if each.fixed}
        lines = [line.rstrip("\r\n") for line in before]
        untouched = [line for number, line in enumerate(lines, 1) if not named & {number - 1, number, number + 1}]
        rest = iter(after)
        assert all(any(grown(line, other.rstrip("\r\n")) for other in rest) for line in untouched)
        assert all(line.endswith(newline) for line in after[:-1])


@each_row("name", EVERY)
def test_what_is_mended_can_still_be_read(name: str) -> None:
    linter, case = EVERY[name]
    found = linted_recipe({**case, "encoding": "utf-8"}, linter)
    if found.form not in ("compose", "kubernetes", "daemon.json"):
        return
    read: Any = json.loads if linter == "docker-daemon" else lambda text: list(yaml.safe_load_all(text))
    try:
        read(case["text"])
    except (ValueError, yaml.YAMLError):
        return  # it never could
    read(found.mended.decode())


@pytest.mark.costly
@each_row("name", [name for name, (linter, _) in EVERY.items() if linter == "serve"])
def test_both_ends_of_a_line_and_marks_mean_the_same(name: str) -> None:
    """UTF-16 of PowerShell, byte order marks and CRLF change no finding."""
    _, case = EVERY[name]
    plain = case["text"].replace("\r\n", "\n")
    wanted = [(each.code, each.line) for each in lint_recipe(plain.encode(), target_of(case)).findings]
    for data in (plain.replace("\n", "\r\n").encode(), b"\xef\xbb\xbf" + plain.encode(), plain.encode("utf-16")):
        assert [(each.code, each.line) for each in lint_recipe(data, target_of(case)).findings] == wanted


def test_what_starts_no_engine_is_no_recipe() -> None:
    for text in ("", "hello world", "docker run nginx", "services:\n  db: {image: postgres}\n"):
        recipe = read_recipe(SourceFile.decode(text.encode()))
        assert recipe is None or recipe.engines == ()
