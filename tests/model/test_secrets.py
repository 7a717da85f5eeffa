"""Secret references: how they are written, how they are resolved, and that nothing shows what they hold."""

import copy
import json
import os
import pickle
import sys
import traceback
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.errors import raises
from tests.rows import each_row
from winhost.model import secrets
from winhost.model.errors import Exit, WinhostError
from winhost.model.secrets import Secret, SecretRef

VALUE = "s3cr3t-Wörd with 'quotes'"
posix_only = pytest.mark.skipif(os.name != "posix", reason="file modes are judged on POSIX only")


def why_of(error: WinhostError) -> str:
    return error.what.partition(" cannot be read: ")[2]


def refused(text: str) -> WinhostError:
    with raises("SecretUnreadable") as caught:
        SecretRef.parse(text).resolve()
    told = "".join(traceback.format_exception(caught.value)) + f"{caught.value!r} {caught.value.hint}"
    assert "s3cr3t" not in told
    return caught.value


def python(code: str) -> str:
    return "cmd:" + json.dumps([sys.executable, "-c", code])


def own_file(folder: Path, data: bytes, mode: int = 0o600) -> str:
    path = folder / "secret"
    path.write_bytes(data)
    path.chmod(mode)
    return f"file:{path}"


# ---- a value shows itself to reveal only


@given(st.text(min_size=6))
def test_a_secret_is_shown_by_nothing_but_reveal(value: str) -> None:
    secret = Secret(value)
    for shown in (repr(secret), str(secret), f"{secret}", f"{secret:>40}", "%s" % secret, f"{[secret]}"):  # noqa: UP031
        assert shown in {"Secret(…)", "[Secret(…)]"}
    assert secret.reveal() == value


@pytest.mark.parametrize("leak", [pickle.dumps, copy.copy, copy.deepcopy, json.dumps, vars])
def test_a_secret_is_not_copied_out(leak: object) -> None:
    with pytest.raises(TypeError) as caught:
        leak(Secret(VALUE))  # type: ignore[operator]
    assert VALUE not in str(caught.value)


# ---- references


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("env:GPU01_PASSWORD", "env:GPU01_PASSWORD"),
        ("file:~/.winhost/gpu-01", "file:~/.winhost/gpu-01"),
        ("cmd:sops -d gpu-01.enc", "cmd:sops …"),
        ('cmd:["vault", "-token=abc"]', "cmd:vault …"),
        ("keyring:winhost/a/CORP\\svc", "keyring:winhost/a/CORP\\svc"),
    ],
)
def test_a_reference_is_shown_without_the_arguments_of_programs(text: str, shown: str) -> None:
    assert str(SecretRef.parse(text)) == shown
    assert repr(SecretRef.parse(text)) == f"SecretRef({shown})"


def refusal(text: str) -> str | None:
    try:
        SecretRef.parse(text)
    except ValueError as error:
        return str(error)
    return None


REFUSALS = {refusal(text) for text in ("hunter2", "env:", "file:", "cmd:", "keyring:")}


@given(st.sampled_from(["", "env:", "file:", "cmd:", "cmd:[", "keyring:"]), st.text())
def test_what_is_no_reference_is_refused_in_words_that_do_not_depend_on_it(start: str, text: str) -> None:
    assert refusal(start + text) in REFUSALS | {None}


@each_row(
    "text",
    [
        "hunter2",
        "",
        "env:",
        "env:a b",
        "env:1A",
        "ENV:A",
        "file:",
        "file:relative",
        "file:/a\0b",
        "cmd:",
        "cmd:   ",
        "cmd:'unclosed",
        "cmd:[]",
        'cmd:["a"',
        'cmd:["a", 1]',
        'cmd:[""]',
        'cmd:["a\\u0000"]',
        "cmd:" + "[" * 100_000,
        "keyring:",
        "keyring:a",
        "keyring:/a",
        "keyring:a/",
        "vault:x",
        4711,
        None,
        ["env:A"],
    ],
)
def test_only_the_four_forms_are_references(text: object) -> None:
    with pytest.raises(ValueError, match="is not a secret reference: "):
        SecretRef.parse(text)


# ---- env


def test_a_variable_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINHOST_TEST", VALUE)
    assert SecretRef.parse("env:WINHOST_TEST").resolve().reveal() == VALUE


def test_a_variable_that_is_unset_or_empty_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WINHOST_TEST", raising=False)
    error = refused("env:WINHOST_TEST")
    assert str(error) == "the secret env:WINHOST_TEST cannot be read: the environment variable is not set"
    assert "WINHOST_TEST" in str(error.hint)
    assert str(error.hint).startswith("In the shell that runs winhost: ")
    assert error.exit_code is Exit.USAGE
    monkeypatch.setenv("WINHOST_TEST", "")
    assert why_of(refused("env:WINHOST_TEST")) == "it is empty"


# ---- file


@pytest.mark.parametrize(
    ("ending", "left"), [("", ""), ("\n", ""), ("\r\n", ""), ("\n\n", "\n"), (" ", " "), ("\r", "\r"), ("\n ", "\n ")]
)
def test_one_newline_at_the_end_of_a_file_is_not_the_secret(tmp_path: Path, ending: str, left: str) -> None:
    reference = own_file(tmp_path, (VALUE + ending).encode())
    assert SecretRef.parse(reference).resolve().reveal() == VALUE + left


def test_a_file_in_the_home_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_file(tmp_path, b"\xef\xbb\xbf" + VALUE.encode())
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert SecretRef.parse("file:~/secret").resolve().reveal() == VALUE


@posix_only
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o666, 0o610])
def test_a_file_that_others_may_open_is_refused_with_the_mend(tmp_path: Path, mode: int) -> None:
    error = refused(own_file(tmp_path, VALUE.encode(), mode))
    assert why_of(error) == "others may open the file"
    assert error.hint == f"chmod 600 {tmp_path / 'secret'}"


@pytest.mark.parametrize(
    ("data", "why"), [(b"", "it is empty"), (b"\n", "it is empty"), (b"s3cr3t\xff", "it is not UTF-8 text")]
)
def test_a_file_without_text_is_refused(tmp_path: Path, data: bytes, why: str) -> None:
    assert why_of(refused(own_file(tmp_path, data))) == why


def test_a_file_that_is_far_too_large_is_not_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(mode=0o600)
    os.truncate(path, 1 << 40)
    with raises("SecretUnreadable", match="more than 64 KiB"):
        SecretRef.parse(f"file:{path}").resolve()


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    assert why_of(refused(f"file:{tmp_path / 'none'}")) == "there is no such file"
    assert why_of(refused(f"file:{tmp_path}")) == "there is no such file"
    assert why_of(refused("file:~nobody-of-this-name/x")) in {"there is no such home folder", "there is no such file"}


@posix_only
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    assert why_of(refused(f"file:{tmp_path / 'pipe'}")) == "there is no such file"


# ---- cmd


def test_the_first_line_of_a_program_is_the_secret() -> None:
    code = f"import sys; sys.stdout.buffer.write({VALUE!r}.encode() + b'\\r\\nmore')"
    assert SecretRef.parse(python(code)).resolve().reveal() == VALUE


def test_no_shell_reads_the_words(tmp_path: Path) -> None:
    script = tmp_path / "say.py"
    script.write_text("import sys; print('|'.join(sys.argv[1:]))", encoding="utf-8")
    reference = f"""cmd:'{sys.executable}' '{script}' $HOME "a b" #c ; > x"""
    assert SecretRef.parse(reference).resolve().reveal() == "$HOME|a b|#c|;|>|x"


def test_a_backslash_is_part_of_a_path_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:  # what pytest does after a test that fails does not work on another system
        patch.setattr(secrets.os, "name", "nt")
        command = SecretRef.parse(r'cmd:C:\tools\sops.exe -d "C:\a b\x"').command
    assert command == [r"C:\tools\sops.exe", "-d", r"C:\a b\x"]


def test_what_a_failing_program_says_is_not_told() -> None:
    error = refused(python("import sys; print('s3cr3t'); print('s3cr3t', file=sys.stderr); sys.exit(3)"))
    assert why_of(error).endswith("ended with exit code 3")


def test_a_program_is_not_waited_for_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "COMMAND_SECONDS", 1)
    error = refused(python("import time; print('s3cr3t', flush=True); time.sleep(60)"))
    assert why_of(error).endswith("did not end within 1 seconds")
    assert error.__context__ is None, "the timeout's exception holds what was printed"


def test_a_program_asks_nothing() -> None:
    assert SecretRef.parse(python("import sys; print(repr(sys.stdin.read()))")).resolve().reveal() == "''"


def test_a_program_that_is_not_there_prints_nothing_or_prints_bytes_is_named() -> None:
    assert "cannot be started" in why_of(refused("cmd:winhost-no-such-program -d x"))
    assert why_of(refused(python("pass"))) == "it is empty"
    error = refused(python("import sys; sys.stdout.buffer.write(b's3cr3t\\xff')"))
    assert why_of(error) == "it is not UTF-8 text"
    assert error.__context__ is None, "the decoder's exception holds the bytes"


# ---- keyring


class KeyringError(Exception):
    """Stands for keyring.errors.KeyringError."""


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    fake, errors = ModuleType("keyring"), ModuleType("keyring.errors")
    errors.KeyringError = KeyringError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "keyring", fake)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return fake


def test_the_keyring_is_asked_for_service_and_user(keyring: ModuleType) -> None:
    entries = {("winhost/lab", "CORP\\svc"): VALUE}
    keyring.get_password = lambda *entry: entries.get(entry)  # type: ignore[attr-defined]
    assert SecretRef.parse("keyring:winhost/lab/CORP\\svc").resolve().reveal() == VALUE
    error = refused("keyring:winhost/other")
    assert (why_of(error), error.hint) == ("the keyring has no such entry", "keyring set winhost other")


def test_a_keyring_that_refuses_is_named(keyring: ModuleType) -> None:
    def refuse(service: str, user: str) -> str:
        raise KeyringError("locked: s3cr3t")

    keyring.get_password = refuse  # type: ignore[attr-defined]
    assert why_of(refused("keyring:a/b")) == "the keyring refused (KeyringError)"


def test_a_missing_keyring_is_told_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring", None)
    error = refused("keyring:a/b")
    assert why_of(error) == "keyring support is not installed"
    assert error.hint == "pip install 'winhost[keyring]'"
