"""Keys that nobody names: winhost makes them, keeps them as references, and uses them by itself."""

import re
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Line
from tests.cli.test_one_plan_to_endpoint import ACCEPT, SAID
from tests.hub.stand_in_hub import StandInHub
from tests.serving.one_plan import hub_of_model, workload
from tests.serving.stacks import IMAGE
from winhost.lab.running_lab import Lab

KEY = re.compile(r"wh-[A-Za-z0-9_-]{43}")
PREPARED = ("--new-vm", "llm-02", "--cpus", "8", "--memory", "64GiB", "--disk", "200GiB", "--vhdx", "./noble.vhdx")


@pytest.fixture
def hub() -> Iterator[StandInHub]:
    with hub_of_model() as found:
        yield found


def without_keys(lab: Lab) -> None:
    """The fleet file of somebody who has no key for SSH; the port is that of the lab."""
    text = re.sub(r"\n      key: .*", "", lab.fleet_file.read_text("utf-8"))
    lab.fleet_file.write_text(text, encoding="utf-8")


def kept(line: Line, host: str, kind: str) -> Path:
    return line.folder / "state/keys" / f"{host}.{kind}"


@pytest.mark.costly
@pytest.mark.parametrize("path", ["wsl2", "dda"])
def test_a_plan_and_its_run_need_no_key_of_anybody(line: Line, lab: Lab, hub: StandInHub, path: str) -> None:
    without_keys(lab)
    host, words = {"wsl2": ("desk-01", ("--path", "wsl2")), "dda": ("gpu-03", PREPARED)}[path]
    (line.folder / "noble.vhdx").write_bytes(b"as good as a VHDX to a simulated host")
    serves = ("--workload", workload(line.folder), "--hub", hub.url, "--engine-image", IMAGE.pinned)
    said = line("plan", host, *words, *serves, "-o", "plan.json")
    assert said.code == 0, said.err
    api, ssh = kept(line, host, "api-key"), kept(line, host, "ssh")
    assert [stat.S_IMODE(file.stat().st_mode) for file in (api, ssh, api.parent)] == [0o600, 0o600, 0o700]
    key = api.read_text("utf-8")
    assert KEY.fullmatch(key)
    assert f"To see it: cat {api}" in said.err
    done = line("apply", "plan.json", *ACCEPT)
    assert done.code == 0, done.err
    assert SAID in done.err.splitlines()[-1]
    assert line("serve", "test", host, "--key", f"file:{api}").code == 0
    told = [said.out, said.err, done.out, done.err, Path("plan.json").read_text("utf-8")]
    told += [file.read_text("utf-8") for file in (line.folder / "state").rglob("*.json*")]
    told += [file.read_text("utf-8") for file in (line.folder / "state").rglob("*.log")]
    assert not [text for text in told if key in text or "PRIVATE KEY" in text]
    again = line("plan", host, *words, *serves, "-o", "plan.json", "--force")
    assert (again.code, api.read_text("utf-8")) == (0, key), again.err
