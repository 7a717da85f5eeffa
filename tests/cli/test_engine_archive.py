"""Tests of winhost plan --engine-archive: vLLM's image from a file, up to an endpoint on a Linux without internet."""

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Line
from tests.hub.stand_in_hub import StandInHub
from tests.images.test_saved_image import saved_by_an_older_docker, saved_by_docker, written
from tests.serving.one_plan import workload
from winhost.lab.linux.serving import ServedEngines

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
DIGEST = f"sha256:{'ab' * 32}"
LOADED = "docker.io/vllm/vllm-openai:v0.33.0"


def plan(line: Line, hub: StandInHub, *words: object) -> Any:
    serves = ("--workload", workload(line.folder), "--api-key", "alice=env:ALICE", "--hub", hub.url)
    return line("plan", "llm-01", *serves, *words, "-o", "plan.json")


@pytest.mark.costly
@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_it_is_loaded_and_started_by_its_name_where_there_is_no_network(
    line: Line, linux: Any, hub: StandInHub, engine: str
) -> None:
    written(saved_by_docker(), Path("vllm.tar"))
    said = plan(line, hub, "--engine-archive", "vllm.tar", "--set", f"engine={engine}")
    assert said.code == 0, said.err
    assert "put the image's archive to /srv/winhost-offline/containers/vllm.tar" in " ".join(said.out.split())
    said = line("fetch", "plan.json", "-o", "offline")
    assert said.code == 0, said.err
    assert Path("offline/containers/vllm.tar").read_bytes() == Path("vllm.tar").read_bytes()
    linux.online = False
    said = line("apply", "offline/plan.json", "--accept", "packages,containers", "--yes")
    assert said.code == 0, said.err + said.out
    units = (each["text"] for each in linux.part(ServedEngines).units.values())
    ours = (text for path, text in linux.texts().items() if path.startswith("/opt/winhost/"))
    texts = [text for text in (*ours, *units) if text]
    assert any(LOADED in text for text in texts)
    assert not any("@sha256:" in text for text in texts), "by this name the engine knows no image"
    assert line("verify", "offline/plan.json").code == 0
    (run,) = line("runs", "--json").results
    assert line("rollback", run["run"], "--yes", "--accept", "packages,containers,data").code == 0


def test_fetch_wants_it_beside_the_plan(line: Line, linux: Any, hub: StandInHub) -> None:
    archive = written(saved_by_docker(), line.folder / "vllm.tar")
    assert plan(line, hub, "--engine-archive", archive).code == 0
    archive.write_bytes(archive.read_bytes() + b"\0")
    said = line("fetch", "plan.json", "-o", "offline")
    assert (said.code, "is not beside the plan" in said.err) == (2, True)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--engine-image", "vllm/vllm-openai:v0.33.0"), "name no other"),
        (("--engine-program", "/opt/vllm"), "name no other"),
        (("--digest", DIGEST), "and the archive has"),
    ],
)
def test_what_contradicts_it_is_refused(
    line: Line, linux: Any, hub: StandInHub, words: tuple[str, ...], why: str
) -> None:
    archive = written(saved_by_docker(), line.folder / "vllm.tar")
    said = plan(line, hub, "--engine-archive", archive, *words)
    assert said.code == 2
    assert why in " ".join(said.err.split())


def test_one_without_a_digest_takes_the_one_that_is_named(line: Line, linux: Any, hub: StandInHub) -> None:
    archive = written(saved_by_an_older_docker(), line.folder / "vllm.tar")
    said = plan(line, hub, "--engine-archive", archive)
    assert (said.code, "has no digest" in said.err) == (2, True)
    assert plan(line, hub, "--engine-archive", archive, "--digest", DIGEST).code == 0
    assert f"docker.io/vllm/vllm-openai@{DIGEST}" in Path("plan.json").read_text("utf-8")


def test_another_version_than_the_workload_states_is_refused(line: Line, linux: Any, hub: StandInHub) -> None:
    archive = written(saved_by_docker(names=("vllm/vllm-openai:v0.24.0",)), line.folder / "vllm.tar")
    said = plan(line, hub, "--engine-archive", archive)
    assert (
        said.code,
        "the workload states 0.33.0, and the tag of the image says 0.24.0" in " ".join(said.err.split()),
    ) == (2, True)
