"""Every command on the pages for newcomers, and every command that winhost prints there, works as printed."""

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest

from tests.cli.conftest import Line
from tests.cli.terminal import agree
from tests.cli.test_never_sleep import host_file
from tests.cli.up_desk import HubOfAll
from tests.connect.local_powershell import local_powershell
from tests.house.test_docs import FENCED, PAGES, take
from tests.hub.stand_in_hub import safetensors, serving
from winhost.cli import COMMANDS
from winhost.lab.hostfile import expand, find
from winhost.lab.running_lab import Lab
from winhost.model.documents import write_document

ROOT = Path(__file__).parents[2]
QWEN = {
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 3584,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16",
}
WEIGHTS = {"model.embed_tokens.weight": ("BF16", [152064, 3584]), "model.layers.0.weight": ("BF16", [28, 233_000_000])}
WSLCONFIG = "[wsl2]\nnetworkingMod=mirrored\n"
COMPOSE = "services:\n  llm:\n    image: vllm/vllm-openai:v0.33.0\n    command: [--model, org/model]\n"
AUTOINSTALL = "autoinstall:\n  version: 1\n  storage: {layout: {name: direct}}\n"
PUBLIC = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAABAgMEBQYHCAkKCwwNDg8QERITFBUWFxgZGhscHR4f me\n"

NOT_TYPED = {
    "uv tool install": "it needs a package index",
    "make": "it runs the tests",
    "winhost fetch": "it downloads Ubuntu and packages; tests/offline has it",
    "winhost boot": "it needs a machine with two systems; tests/cli/test_boot.py has one",
    "winhost apply room.json": "the simulated desktop has joined no Entra ID that takes its recovery key",
    "winhost install": "it needs what room.json makes, and Ubuntu's media; tests/cli/test_install.py has both",
    "winhost open": "it runs until Ctrl-C; tests of chat have it",
    "winhost weights": "it needs a GPU and a model; tests/cli/test_weights.py has a stand-in",
    "winhost yield": "it needs a workload that yields; tests/cli/test_serve_target.py has one",
}
"""By how a line begins, and why."""

FRESH, WITH_VM = "server2025-3gpu", "server2025-role-installed"
ASK = ("up", "down", "host add", "apply", "rollback", "serve keys add")
FIND = ("lint",)  # exits with 1, for the files above have faults
INSTEAD = {
    "up --on gpu-01": ("--set", "new_vm.vhdx.source=./noble.vhdx"),
    "plan gpu-01 --new-vm": ("--vhdx", "./noble.vhdx"),
    "render kubernetes": ("--no-device-plugin",),
}
"""Of Ubuntu's image, which would be downloaded, and of a registry, which would be asked."""

LINUX = (
    "host test llm-01",
    "detect llm-01",
    "assess llm-01",
    "models llm-01",
    "workload init Qwen/Qwen2.5-7B-Instruct -o my.yaml",
    "assess llm-01 --workload my.yaml",
    "plan llm-01 --workload my.yaml -o plan.json",
    "apply plan.json",
    "status",
    "verify plan.json",
    "runs",
    "runs RUN",
    "serve status llm-01",
    "serve test llm-01",
    "rollback RUN",
    "up --on llm-01",
    "up --on llm-01",
    "status",
    "runs RUN",
    "down llm-01",
    "status",
    "down llm-01",
)

CHANGE = (
    "apply",
    "boot",
    "demo",
    "down",
    "host add",
    "host remove",
    "models refresh",
    "open",
    "resume",
    "rollback",
    "up",
)
"""What is printed of these is only parsed: the pages themselves go on with most of them, tests of up with others."""
PRINTED = re.compile(r"^ *(?:[^\n]*: )?(winhost [a-z][^;\n]*?)[. ]*(?:;.*)?$", re.MULTILINE)
OPEN = re.compile(r"\b(?:CODE|HOST|NAME|USER@ADDRESS|survey.txt|displays.xml)\b")
"""What the reader fills in, or makes first."""


@dataclass
class Page:
    """A folder with the files that a page mentions. server: the lab's name of gpu-01; followed: commands that were
    printed.
    """

    lab: Lab
    line: Line
    server: str
    followed: set[str] = field(default_factory=set)
    faults: list[str] = field(default_factory=list)

    @property
    def password(self) -> str:
        return (self.lab.fleet_file.parent / "password").read_text("utf-8").strip()

    def type(self, text: str) -> None:
        """Run a command as the page prints it."""
        words = [word for each in shlex.split(text, comments=True)[1:] for word in self.filled(each)]
        typed = shlex.join(words)
        words += [more for begin, given in INSTEAD.items() if typed.startswith(begin) for more in given]
        if typed.startswith(ASK):
            told = agree(*words, password=self.password)
            code, said = told.code, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", told.text).replace("\r", "")
        else:
            here = self.line(*words)
            code, said = here.code, here.out + here.err
        if code != (1 if typed.startswith(FIND) else 0):
            self.faults.append(f"{typed}: {code}\n{said[-1500:]}")
        for each in PRINTED.findall(said):
            self.follow(each, typed)

    def follow(self, command: str, after: str) -> None:
        """Run a command as winhost prints it."""
        if command in self.followed or OPEN.search(command) or command.split()[1] not in COMMANDS:
            return
        self.followed.add(command)
        words = shlex.split(command)[1:]
        if shlex.join(words).startswith(CHANGE):
            fault = not_taken(words)
        else:
            told = self.line(*words)
            fault = told.err if told.code else ""
        if fault:
            self.faults.append(f"{command}, printed by {after}: {fault}")

    def filled(self, word: str) -> list[str]:
        match word:
            case "RUN":
                return [str(self.line("runs", "--json").results[-1]["run"])]
            case "svc-gpu@gpu-01.corp.example":
                return [self.account]
            case "administrator@gpu-01":
                return [self.account, "--name", "gpu-01"]
        return sorted(map(str, Path().glob(word))) if "*" in word else [word]

    @property
    def account(self) -> str:
        (port,) = re.findall(rf'"{self.server}":.*?port: (\d+)', self.lab.fleet(), re.DOTALL)[:1]
        return rf"LAB\admin@127.0.0.1:{port}"

    def write_fleet(self, *, servers: bool) -> None:
        """Write a fleet file with this machine, and with desk-01 on pages about servers."""
        head, *blocks = re.sub(r"\n      key: .*", "", self.lab.fleet()).split('\n  "')
        kept = [each for each in blocks if servers and each.startswith("desk-01")]
        here = f"\n  desk:\n    address: localhost\n    ssh: {self.ssh('desk-01')}"
        Path("fleet.yaml").write_text('\n  "'.join([head + here, *kept]).rstrip() + "\n", encoding="utf-8")

    def ssh(self, host: str) -> str:
        """Return the address at which the simulated Linux really listens."""
        return f"{{port: {self.lab.ssh_endpoints[host].port}, address: 127.0.0.1}}"


def not_taken(words: list[str]) -> str:
    """Return why the command line does not parse."""
    try:
        take(words)
    except click.ClickException as error:
        return error.format_message()
    return ""


@contextmanager
def page_with(server: Path, line: Line, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    programs = line.folder / "programs"
    programs.mkdir()
    imports = ROOT / "tests/data/imports/synthetic"
    facts = write_document(expand(find("win11-pro-1gpu"))[0])
    for name, text in {
        ".wslconfig": WSLCONFIG,
        "compose.yaml": COMPOSE,
        "autoinstall.yaml": AUTOINSTALL,
        "my.pub": PUBLIC,
        "noble.vhdx": "as good as a VHDX to a simulated host",
        **dict.fromkeys(("facts.json", "monday.json", "today.json"), facts),
    }.items():
        Path(name).write_text(text, encoding="utf-8")
    shutil.copy(imports / "nvidia-smi-windows-4090.xml", "smi.xml")
    shutil.copy(imports / "computer-info-win11-pro.json", "info.json")
    files = {"config.json": json.dumps(QWEN).encode(), "model.safetensors": safetensors(WEIGHTS)}
    with (
        Lab([find("win11-pro-1gpu"), server], line.folder / "lab", scale=0.001) as lab,
        serving(HubOfAll(files=files, sizes={"model.safetensors": 5_000_000_000})) as hub,
        local_powershell(programs, lab.hosts["desk-01"]),
    ):
        found = Page(lab, line, next((name for name in lab.hosts if name != "desk-01"), "none"))
        for name, value in {
            "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(line.folder / "home"),
            "ALICE_KEY": "key-of-alice-that-nobody-guesses",
            "GPU_01_PASSWORD": found.password,
            "WINHOST_HUB": hub.url,
            "WINHOST_ENGINE_IMAGE": f"registry.example.com/vllm/vllm-openai:v0.33.0@sha256:{'a' * 64}",
        }.items():
            monkeypatch.setenv(name, value)
        yield found


def lines_of(page: str) -> list[str]:
    blocks = [block for kind, block in FENCED.findall(PAGES[page]) if kind == "console"]
    return [each[2:] for block in blocks for each in block.splitlines() if each.startswith("$ ")]


@pytest.mark.costly
@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal is POSIX's")
@pytest.mark.parametrize(
    ("name", "server"),
    [
        ("README.md", FRESH),
        ("docs/my-desktop.md", FRESH),
        ("docs/my-servers.md", FRESH),
        ("docs/no-access.md", FRESH),
        ("docs/cli.md", WITH_VM),
    ],
)
def test_each_command_works_as_it_is_printed(
    line: Line, name: str, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_lab = find(server) if server == FRESH else host_file(line.folder, server)
    with page_with(of_lab, line, monkeypatch) as page:
        page.write_fleet(servers=name in ("docs/my-servers.md", "docs/cli.md"))
        for text in lines_of(name):
            if not text.startswith(tuple(NOT_TYPED)):
                page.type(text)
            if text.startswith("winhost host add"):
                with Path("fleet.yaml").open("a", encoding="utf-8") as file:
                    file.write(f"    ssh: {page.ssh(page.server)}\n")
            if text.startswith("winhost up --on"):
                page.type("winhost down gpu-01")  # the page goes on with another way to the same
        assert not page.faults, "\n".join(page.faults)


@pytest.mark.costly
@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal is POSIX's")
def test_what_is_printed_on_the_way_through_a_linux_works(line: Line, monkeypatch: pytest.MonkeyPatch) -> None:
    with page_with(ROOT / "examples/linux/ubuntu-2xh100.json", line, monkeypatch) as page:
        Path("fleet.yaml").write_text(page.lab.fleet(), encoding="utf-8")
        for text in LINUX:
            page.type(f"winhost {text}")
        assert not page.faults, "\n".join(page.faults)
        assert {"winhost chat llm-01 'Say hello'", "winhost down llm-01"} <= page.followed


def test_every_line_that_is_not_typed_is_on_a_page() -> None:
    lines = [text for name in PAGES for text in lines_of(name)]
    assert [begin for begin in NOT_TYPED if not any(text.startswith(begin) for text in lines)] == []
