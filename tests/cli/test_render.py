"""Tests of winhost render compose."""

from hashlib import sha256
from pathlib import Path

import pytest
import yaml

from tests.cases import FASTEST
from tests.cli.conftest import Line
from tests.images.stand_in_registry import StandInRegistry, serving
from tests.rows import each_row
from tests.schemas import faults
from tests.serving.one_plan import KEY, workload

DIGEST = f"sha256:{'ab' * 32}"
MACHINE = ("--gpus", "2x48GiB", "--memory", "256GiB")
LINUX = Path(__file__).parents[2] / "examples/linux/ubuntu-2xh100.json"


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALICE", KEY)


def rendered(line: Line, *words: object) -> tuple[str, ...]:
    return ("render", "compose", str(workload(line.folder)), "--api-key", "alice=env:ALICE", *map(str, words))


def test_it_prints_a_project_and_says_what_to_know_of_it_beside(line: Line) -> None:
    said = line(*rendered(line, *MACHINE, "--digest", DIGEST))
    assert said.code == 0, said.err
    assert yaml.load(said.out, FASTEST)["services"]["engine-chat"]["image"] == f"docker.io/vllm/vllm-openai@{DIGEST}"
    assert KEY not in said.out
    assert "note: chat: profile" in said.err


def test_only_another_hub_is_named_in_it(line: Line) -> None:
    for words, named in (((), False), (("--hub", "https://huggingface.co"), False), (("--hub", "https://h.lan"), True)):
        said = line(*rendered(line, *MACHINE, "--digest", DIGEST, *words))
        assert (said.code, "HF_ENDPOINT" in said.out) == (0, named), words


def test_programs_get_it_in_the_published_envelope(line: Line) -> None:
    said = line(*rendered(line, *MACHINE, "--digest", DIGEST, "--json"))
    schema = line("schema", "rendered").json
    assert [*faults(said.json, schema, schema)] == []
    assert said.result["text"].startswith("# Written by winhost")
    assert said.result["notes"]


def test_the_registry_is_asked_for_the_digest_of_a_tag(line: Line) -> None:
    with serving(StandInRegistry()) as registry:
        digest = registry.put_image((b"layer",), "v0.33.0")
        said = line(*rendered(line, "--facts", LINUX, "--engine-image", f"{registry.host}/org/engine:v0.33.0"))
    assert said.code == 0, said.err
    image = yaml.load(said.out, FASTEST)["services"]["gateway"]["image"]
    assert image == f"{registry.host}/org/engine@{digest}"


@pytest.mark.costly
def test_it_is_written_over_its_like_alone(line: Line) -> None:
    words = rendered(line, *MACHINE, "--digest", DIGEST, "-o", "compose.yaml")
    assert line(*words).code == line(*words).code == 0
    Path("compose.yaml").write_text("services: {mine: {}}\n")
    assert line(*words).code == 2
    assert line(*words, "--force").code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "which machine will serve?"),
        (("--gpus", "2x48GiB"), "which machine will serve?"),
        (("--facts", LINUX, "--gpus", "2x48GiB"), "use one or the other"),
        (("--gpus", "two", "--memory", "1GiB"), "such as 2x48GiB"),
        ((*MACHINE, "--digest", DIGEST, "--listen", "0.0.0.0:8443"), "beyond this machine"),
    ],
)
def test_what_is_missing_is_told(line: Line, words: tuple[object, ...], said: str) -> None:
    found = line(*rendered(line, *words))
    assert found.code == 2
    assert said in " ".join(found.err.split())


def test_a_key_that_nobody_named_is_made_and_only_its_hash_is_printed(line: Line) -> None:
    file = workload(line.folder)
    found = line("render", "compose", str(file), *MACHINE, "--digest", DIGEST)
    made = line.folder / "state/keys/stated.api-key"
    assert (found.code, f"To see it:\n  cat {made}\n" in found.err) == (0, True)
    key = made.read_text("utf-8")
    assert sha256(key.encode()).hexdigest() in found.out
    assert key not in found.out + found.err


PROXY = ("--certificate", "/etc/ssl/proxy.pem")


def behind_a_proxy(line: Line) -> str:
    path = workload(line.folder)
    path.write_text(path.read_text("utf-8") + "trusted_proxies: [10.20.0.5/32]\nproxy_protocol: true\n")
    return str(path)


def test_a_proxy_is_configured_for_the_gateway_of_a_workload(line: Line) -> None:
    said = line("render", "proxy", "haproxy", behind_a_proxy(line), *PROXY, "--allow", "10.0.0.0/8")
    assert said.code == 0, said.err
    assert "server gateway 127.0.0.1:8443 send-proxy-v2\n" in said.out
    assert "unless { src 10.0.0.0/8 }" in said.out
    place = line.folder / "haproxy.cfg"
    said = line("render", "proxy", "haproxy", behind_a_proxy(line), *PROXY, "-o", place)
    assert (said.code, place.read_text("utf-8").startswith("# Written by winhost")) == (0, True)
    assert "haproxy -c -f /etc/haproxy/haproxy.cfg && systemctl reload-or-restart haproxy" in " ".join(said.err.split())


@pytest.mark.parametrize("place", ["proxy.lan:443", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:70000", "443"])
def test_a_proxy_listens_at_an_address_and_a_port(line: Line, place: str) -> None:
    said = line("render", "proxy", "haproxy", behind_a_proxy(line), *PROXY, "--listen", place)
    assert (said.code, "is not ADDRESS:PORT" in said.err) == (2, True)


@each_row(
    "example", sorted((Path(__file__).parents[2] / "examples/workloads").glob("*.yaml")), ids=lambda file: file.stem
)
def test_every_shipped_example_renders(line: Line, example: Path) -> None:
    keeps_windows = "keep_windows_usable: true" in example.read_text("utf-8")
    machine = ("--facts", line.facts("win11-pro-2xl20-wddm")) if keeps_windows else MACHINE
    words = ("--api-key", "alice=env:ALICE", "--digest", DIGEST, "--plain-http", *machine)
    said = line("render", "compose", example, *words)
    assert said.code == 0, said.err
    assert f"docker.io/vllm/vllm-openai@{DIGEST}" in said.out
