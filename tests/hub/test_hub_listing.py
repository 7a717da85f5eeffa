"""What a hub lists of a model, as a plan has it; the hub is on loopback."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from tests.errors import raises
from winhost.cli import winhost
from winhost.hub.repositories import model_files
from winhost.resources.registry import RESOURCE_TYPES
from winhost.web.server import run_server

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CANARY = "hf_canary-of-the-listing"
WEIGHTS = {
    "type": "file",
    "path": "model.safetensors",
    "size": 134,
    "oid": "a" * 40,
    "lfs": {"oid": "b" * 64, "size": 9},
}
CONFIG = {"type": "file", "path": "sub/config.json", "size": 3, "oid": "c" * 40}
FOLDER = {"type": "directory", "path": "sub", "size": 0, "oid": "d" * 40}
LINES = [f"git-sha1:{'c' * 40} 3 sub/config.json", f"sha256:{'b' * 64} 9 model.safetensors"]


class Api:
    """pages: of the list, one after another; status: of each answer; elsewhere: what is said to be the next page."""

    def __init__(self) -> None:
        self.pages: list[Any] = [[FOLDER, WEIGHTS], [CONFIG]]
        self.status = 200
        self.elsewhere = ""
        self.asked: list[tuple[str, str | None]] = []
        self.url = ""


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.asked.append((self.path, self.headers.get("Authorization")))
            page = int(self.path.partition("&page=")[2] or 0)
            self.send_response(made.status)
            if page + 1 < len(made.pages):
                after = made.elsewhere or f"{made.url}{self.path.partition('&')[0]}&page={page + 1}"
                self.send_header("Link", f'<{after}>; rel="next"')
            if made.status == 302:
                self.send_header("Location", "http://localhost:1/")
            self.end_headers()
            self.wfile.write(json.dumps(made.pages[page]).encode())

        def log_message(self, *arguments: Any) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, run_server(server):
        made.url = f"http://127.0.0.1:{server.server_port}"
        yield made


def test_every_file_has_its_size_and_its_hash(api: Api) -> None:
    found = model_files("org/model", COMMIT, hub=api.url)
    assert found == {"source": f"{api.url}/org/model", "revision": COMMIT, "files": LINES, "token": None}
    assert [path.partition("?")[0] for path, _ in api.asked] == [f"/api/models/org/model/tree/{COMMIT}"] * 2
    assert RESOURCE_TYPES["ModelFiles"].check_values({**found, "files": list(found["files"])}) is None


def test_the_token_goes_to_the_hub_and_its_reference_to_the_plan(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    monkeypatch.setenv("HF_TOKEN", CANARY)
    found = model_files("org/model", COMMIT, "env:HF_TOKEN", api.url)
    assert found["token"] == "env:HF_TOKEN"
    assert CANARY not in json.dumps(found)
    assert {given for _, given in api.asked} == {f"Bearer {CANARY}"}


@pytest.mark.parametrize("status", [302, 401, 403, 404, 429, 500])
def test_what_is_no_list_is_told(api: Api, status: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    api.status = status
    with raises("NotListed") as caught:
        model_files("org/model", COMMIT, "env:HF_TOKEN", api.url)
    assert CANARY not in str(caught.value)


@pytest.mark.parametrize(
    "pages",
    [
        [{"error": "x"}],
        [[]],
        [["x"]],
        [[{**CONFIG, "path": "../x"}]],
        [[{**CONFIG, "path": "a\nb"}]],
        [[{**CONFIG, "oid": "x"}]],
        [[{**CONFIG, "size": -1}]],
        [[{**WEIGHTS, "lfs": {"oid": "short", "size": 9}}]],
    ],
)
def test_what_is_listed_must_be_files_of_the_model(api: Api, pages: list[Any]) -> None:
    api.pages = pages
    with raises("NotListed"):
        model_files("org/model", COMMIT, hub=api.url)


def test_another_page_is_not_asked_of_another_host(api: Api) -> None:
    api.elsewhere = "http://localhost:1/"
    with raises("NotListed"):
        model_files("org/model", COMMIT, hub=api.url)


@pytest.mark.parametrize(("model", "revision"), [("../x", COMMIT), ("org/model/x", COMMIT), ("org/model", "main")])
def test_only_a_model_at_a_commit_is_asked_for(api: Api, model: str, revision: str) -> None:
    with raises("NotListed"):
        model_files(model, revision, hub=api.url)
    assert api.asked == []


def test_it_is_printed_as_an_entry_of_a_playbook(api: Api) -> None:
    words = ["serve", "files", "org/model", "--revision", COMMIT, "--folder", "/srv/models/x", "--hub", api.url]
    (entry,) = yaml.safe_load(CliRunner().invoke(winhost, words).output)
    assert (entry["resource"], entry["key"], entry["desired"]["files"]) == (
        "ModelFiles",
        {"folder": "/srv/models/x"},
        LINES,
    )
    said = CliRunner().invoke(winhost, [*words, "--token", CANARY])
    assert said.exit_code == 2
    assert CANARY not in said.output


def test_weights_that_are_there_once_more_are_no_part_of_a_plan(api: Api) -> None:
    copies = ["original/model.safetensors", "original/consolidated.00.pth", "metal/model.bin"]
    kept = ["original/params.json", "1_Pooling/model.safetensors"]
    api.pages = [[WEIGHTS, *(WEIGHTS | {"path": path} for path in (*copies, *kept))]]
    listed = [line.split(" ", 2)[2] for line in model_files("org/model", COMMIT, hub=api.url)["files"]]
    assert sorted(listed) == sorted(["model.safetensors", *kept])
    api.pages = [[WEIGHTS | {"path": path} for path in copies]]
    assert len(model_files("org/model", COMMIT, hub=api.url)["files"]) == len(copies)
