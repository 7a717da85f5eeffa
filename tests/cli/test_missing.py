"""Every command reports all that is missing for a workload in one message."""

import re
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.serving.one_plan import workload
from winhost.cli.plan import stack_parts
from winhost.images.image_registry import ImageName, resolve_error
from winhost.model.shipped import shipped

LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"
REVISION, TLS, ALLOW, MACHINE = "has no revision", "--certificate", "as --allow 10.20.0.0/16", "which machine"
IN_CLUSTER, VIDEO, REGISTRY, PLUGIN = "--tls-secret NAME", "--ffmpeg-image", "--digest sha256:…", "--no-device-plugin"
SLEEPS = "Kubernetes gives each GPU to one pod"

# What each shipped workload lacks without its revisions, and without any option.
MISSING: dict[str, dict[str, tuple[str, ...]]] = {
    "plan": {
        "one-7b-on-24gb": (REVISION, TLS, ALLOW),
        "70b-awq-on-2x48gb": (REVISION, TLS, ALLOW),
        "kv-on-disk": (REVISION,),
        "three-share-a-gpu": (REVISION, REVISION, REVISION),
        "video-beside-llm": (REVISION,),
    },
    "compose": {
        "one-7b-on-24gb": (MACHINE, REVISION, TLS, REGISTRY),
        "70b-awq-on-2x48gb": (MACHINE, REVISION, TLS, REGISTRY),
        "kv-on-disk": (MACHINE, REVISION, REGISTRY),
        "three-share-a-gpu": (MACHINE, REVISION, REVISION, REVISION, REGISTRY),
        "video-beside-llm": (MACHINE, REVISION, REGISTRY),
    },
    "kubernetes": {
        "one-7b-on-24gb": (MACHINE, REVISION, IN_CLUSTER, ALLOW, REGISTRY, PLUGIN),
        "70b-awq-on-2x48gb": (MACHINE, REVISION, IN_CLUSTER, ALLOW, REGISTRY, PLUGIN),
        "kv-on-disk": (MACHINE, REVISION, REGISTRY, PLUGIN),
        "three-share-a-gpu": (MACHINE, SLEEPS, PLUGIN),
        "video-beside-llm": (MACHINE, REVISION, VIDEO, REGISTRY, PLUGIN),
    },
}


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(name: str) -> None:
        raise resolve_error(ImageName.parse(name), "cannot be reached", "Name an image with its digest")

    monkeypatch.setattr(stack_parts, "resolve", away)


def things(text: str) -> list[str]:
    """Return the items of one message, each on one line."""
    found = re.split(r"^ {2}\d+\. ", text, flags=re.MULTILINE)[1:]
    return [" ".join(each.split()) for each in found or [text]]


@pytest.mark.parametrize("command", MISSING)
def test_all_that_is_missing_is_told_in_one_message(line: Line, command: str) -> None:
    assert {file.stem for file in (shipped("examples") / "workloads").glob("*.yaml")} == MISSING[command].keys()
    wrong = {}
    for name, expected in MISSING[command].items():
        file = unpinned(line.folder, name)
        words = (
            ("plan", LINUX, "--path", "linux", "--workload", file) if command == "plan" else ("render", command, file)
        )
        said = line(*words)
        told = things(said.err)
        if said.code != 2 or len(told) != len(expected) or not all(a in b for a, b in zip(expected, told, strict=True)):
            wrong[name] = said.err
    assert not wrong


def test_a_key_that_was_typed_in_place_of_a_reference_is_not_shown(line: Line) -> None:
    file = shipped("examples") / "workloads/one-7b-on-24gb.yaml"
    said = line(
        "plan", LINUX, "--path", "linux", "--workload", file, "--api-key", "wh-canary", "--metrics-key", "m=wh-canary"
    )
    assert (said.code, "canary" in said.out + said.err) == (2, False)
    assert sum("--api-key" in each or "NAME=REF" in each for each in things(said.err)) == 1


def unpinned(folder: Path, example: str) -> Path:
    """Write a copy of a shipped workload without its revisions."""
    text = (shipped("examples") / f"workloads/{example}.yaml").read_text("utf-8")
    file = folder / f"{example}.yaml"
    file.write_text(re.sub(r" +revision: .*\n", "", text), encoding="utf-8")
    return file


def test_one_thing_alone_keeps_its_own_code(line: Line) -> None:
    file = unpinned(line.folder, "kv-on-disk")
    said = line("plan", LINUX, "--path", "linux", "--workload", file, "--json")
    assert (said.code, said.result["error"]["kind"]) == (2, "NoRevision")


def test_what_could_not_be_reached_is_told_at_once(line: Line) -> None:
    file = workload(line.folder)
    said = line("plan", LINUX, "--path", "linux", "--workload", file, "--hub", "http://127.0.0.1:9")
    assert said.code == 2
    assert [each.partition(":")[0] for each in things(said.err)] == ["docker.io/vllm/vllm-openai", "org/model"]
    assert REGISTRY in things(said.err)[0]


def test_a_profile_tells_all_that_is_wrong_with_its_words(line: Line) -> None:
    (line.folder / "w.yaml").write_text("schema: winhost.workload/1\nmodels: {chat: {}}\n", "utf-8")
    words = ("--workload", "w.yaml", "--path", "dda", "--profile", "wsl2")
    told = things(line("serve", "profile", *words).err)
    assert len(told) == 3
    assert all(a in b for a, b in zip(("no facts are named", "nothing of its size", "contradicts"), told, strict=True))


@pytest.mark.parametrize("network", ["lan", "10.20.0.5/16"])
def test_what_is_no_network_is_refused_before_anything_is_asked(line: Line, network: str) -> None:
    served = ("--workload", workload(line.folder, "lan"), "--plain-http", "--allow", network)
    said = line("plan", LINUX, "--path", "linux", *served)
    assert (said.code, "write 10.20.0.0/16" in " ".join(said.err.split())) == (2, True)
