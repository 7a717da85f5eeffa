"""A plan whose public key does not match the private key of fleet.yaml is refused before it is written."""

from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.cli.conftest import Line, Said
from winhost.cli.change.apply import amend_request
from winhost.cli.plan.options import FleetKeys, default_request, given_keys
from winhost.lab.running_lab import Lab
from winhost.model.errors import UsageError
from winhost.model.shipped import shipped

OTHER = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIBQmLs1Q0m2Y8gRZ0nT9vJwqK4cE7hX5uPdFbVt6SyaA desk"
NEW_VM = (
    "--new-vm",
    "llm-9",
    "--cpus",
    4,
    "--memory",
    "16GiB",
    "--disk",
    "100GiB",
    "--address",
    "dhcp",
    "--allow-unverified",
)


def new_key(name: str) -> str:
    """Create a key pair in the current folder and return its public key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    Path(name).write_bytes(private)
    Path(name).chmod(0o600)
    Path(f"{name}.pub").write_text(f"{public} {name}\n", encoding="utf-8")
    return public


def fleet(**keys: str) -> None:
    """Write a fleet file. hosts: the reference to each host's private key."""
    lines = (f"  {host.replace('_', '-')}: {{ssh: {{key: '{key}'}}}}" for host, key in keys.items())
    Path("fleet.yaml").write_text("\n".join(["schema: winhost.fleet/1", "hosts:", *lines, ""]), encoding="utf-8")
    Path("fleet.yaml").chmod(0o600)


def refused(said: Said, option: str) -> str:
    """Return the error on one line."""
    assert said.code == 2, said.err
    told = " ".join(said.err.split())
    assert f"({option})" in told
    assert told.count("SHA256:") == 2
    assert not Path("plan.json").exists()
    return told


def test_a_host_is_not_planned_with_the_key_of_somebody_else(line: Line, lab: Lab) -> None:
    words = ("plan", "desk-01", "--path", "wsl2", "-o", "plan.json", "--set")
    refused(line(*words, f"access.key={OTHER}"), "--set access.key")
    said = line(*words, f"access.key={lab.public_key}")
    assert said.code == 0, said.err
    assert "not compared" not in said.out


def test_facts_are_planned_for_the_host_of_this_name_in_fleet_yaml(line: Line) -> None:
    new_key("one")
    fleet(desk_01=f"file:{Path('one').absolute()}", gpu_03=f"file:{Path('one').absolute()}")
    Path("other.pub").write_text(OTHER, encoding="utf-8")
    desk, server = line.facts("win11-pro-1gpu"), line.facts("server2025-role-installed")
    refused(
        line("plan", desk, "--path", "wsl2", "--set", "access.key=@other.pub", "-o", "plan.json"), "--set access.key"
    )
    refused(line("plan", server, *NEW_VM, "--ssh-key", "other.pub", "-o", "plan.json"), "--ssh-key")
    said = line("plan", desk, "--path", "wsl2", "--set", "access.key=@one.pub", "-o", "plan.json", "--json")
    assert (said.code, [note for note in said.result["plan"]["notes"] if "compared" in note]) == (0, []), said.err


def test_of_several_hosts_each_has_its_own(line: Line) -> None:
    new_key("one")
    new_key("two")
    fleet(desk_01=f"file:{Path('one').absolute()}", gpu_03=f"file:{Path('two').absolute()}")
    files = (line.facts("win11-pro-1gpu"), line.facts("server2025-role-installed"))
    said = line(
        "plan", *files, "--path", "wsl2", "--set", "access.key=@two.pub", "--allow-unverified", "-o", "plans/", "--json"
    )
    assert said.code == 2
    assert {each["host"]: each.get("error", {}).get("kind") for each in said.results} == {
        "desk-01": "OtherKey",
        "gpu-03": None,
    }
    assert [file.name for file in Path("plans").iterdir()] == ["gpu-03.json"]


def test_what_was_not_compared_is_told_in_the_plan(line: Line) -> None:
    fleet(desk_01="file:/nowhere/id")
    words = ("plan", line.facts("win11-pro-1gpu"), "--path", "wsl2", "--set", f"access.key={OTHER}")
    assert "was not compared with the private key at hosts.desk-01.ssh.key" in " ".join(line(*words).out.split())
    Path("fleet.yaml").write_text("schema: other", encoding="utf-8")
    assert "was not compared with the private key in fleet.yaml" in " ".join(line(*words).out.split())
    Path("fleet.yaml").unlink()
    said = line(*words)
    assert (said.code, "compared" in said.out) == (0, False), "no private key is named"


@pytest.mark.parametrize(
    ("path", "settings", "option"),
    [
        ("wsl2", ("access.key=@other.pub",), "--set access.key"),
        (
            "dual-boot",
            ("system.hostname=gpu-01", "system.key=@other.pub", f"system.sha256={'ab' * 32}"),
            "--set system.key",
        ),
    ],
)
def test_resume_compares_what_it_is_given(line: Line, path: str, settings: tuple[str, ...], option: str) -> None:
    new_key("one")
    fleet(desk_01=f"file:{Path('one').absolute()}")
    Path("other.pub").write_text(OTHER, encoding="utf-8")
    request = amend_request(default_request(path), None, (), settings)
    assert given_keys(request) == {OTHER: option}
    with pytest.raises(UsageError) as caught:
        FleetKeys(None).check("desk-01", given_keys(request))
    assert caught.value.code == "OtherKey"


def test_of_several_keys_in_a_playbook_one_is_enough(line: Line) -> None:
    fleet(desk_01=f"file:{Path('one').absolute()}")
    mine, facts = new_key("one"), line.facts("win11-pro-1gpu")
    text = (shipped("playbooks") / "wsl2.yaml").read_text("utf-8")
    for keys, code in (([OTHER, mine], 0), ([OTHER], 2)):
        Path("own.yaml").write_text(text.replace('"${each.keys}"', str(keys)), encoding="utf-8")
        said = line("plan", facts, "--playbook", "own.yaml", "--set", f"access.key={OTHER}")
        assert said.code == code, said.err
