"""A file of another version is refused by name, whatever its kind, and nothing of it is read."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.autoinstall.layouts import MANIFEST
from tests.engine.world import world
from tests.errors import raises
from winhost.autoinstall.autoinstall_file import read_known_disks
from winhost.autoinstall.install_plan import InstallPlan, NewSystem, format_install_plan, read_install_plan
from winhost.autoinstall.manifest import read_manifest
from winhost.engine.journal import read_journal
from winhost.engine.planfile import read_plan
from winhost.lab.hostfile import expand, find
from winhost.model.documents import write_document
from winhost.model.fleet import load_fleet
from winhost.model.shipped import shipped
from winhost.model.versions import SUPPORTED_SCHEMAS
from winhost.model.workloadfile import load_workload
from winhost.paths.playbook import read_playbook
from winhost.resources.factsfile import read_facts


class Example(NamedTuple):
    """A valid file of one kind, and all that read such files."""

    name: str
    text: str
    readers: tuple[Callable[[Path], object], ...]


def every_kind(folder: Path) -> Mapping[str, Example]:
    here = world(folder)
    plan = here.plan()
    here.apply(plan)
    journal = here.store.path(here.run).read_text("utf-8")
    key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIFfbtlbrQoRQA61fZl9w4Qw6AwUOmVN4ZQxPOSBNdPzL me"
    system = NewSystem("gpu-01", "winhost", (key,), "52:54:00:12:34:56")
    install = InstallPlan("gpu-01", MANIFEST.machine, system, "24.04.4", MANIFEST)
    return {
        "winhost.facts/3": Example("facts.json", write_document(here.facts()), (read_facts, read_known_disks, expand)),
        "winhost.plan/3": Example("plan.json", write_document(plan), (read_plan,)),
        "winhost.journal/3": Example("run.jsonl", journal, (read_journal,)),
        "winhost.install-plan/1": Example("install.json", format_install_plan(install), (read_install_plan,)),
        "winhost.disk-manifest/1": Example(
            "manifest.json", write_document(MANIFEST), (read_manifest, read_known_disks)
        ),
        "winhost.fleet/1": Example("fleet.yaml", (shipped("examples") / "fleet.yaml").read_text(), (load_fleet,)),
        "winhost.workload/1": Example(
            "workload.yaml", (shipped("examples") / "workloads/one-7b-on-24gb.yaml").read_text(), (load_workload,)
        ),
        "winhost.playbook/2": Example("dda.yaml", (shipped("playbooks") / "dda.yaml").read_text(), (read_playbook,)),
        "winhost.host/2": Example("host.yaml", find("server2022-2gpu").read_text(), (expand,)),
    }


def test_a_file_of_another_version_is_refused_and_one_of_this_version_is_read(tmp_path: Path) -> None:
    kinds = every_kind(tmp_path / "world")
    assert kinds.keys() == SUPPORTED_SCHEMAS.keys()
    for schema, example in kinds.items():
        path = tmp_path / example.name
        kind, _, number = schema.rpartition("/")
        assert example.text.count(schema) >= 1
        for reader in example.readers:
            path.write_text(example.text, encoding="utf-8")
            reader(path)
            for other in (f"{kind}/{int(number) - 1}", f"{kind}/{int(number) + 1}"):
                # All else is missing from the second: a reader that went on would say so.
                for text in (example.text.replace(schema, other), json.dumps({"schema": other}) + "\n"):
                    path.write_text(text, encoding="utf-8")
                    with raises("OtherVersion") as refused:
                        reader(path)
                    assert example.name in refused.value.what
                    assert f"schema is '{other}', and this winhost reads '{schema}'" in refused.value.what
                    assert refused.value.hint == SUPPORTED_SCHEMAS[schema]


def test_a_journal_that_an_older_winhost_continued_is_refused_whole(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    lines = [{"n": 1, "schema": "winhost.journal/1"}, {"n": 2, "event": "continued", "schema": "winhost.journal/3"}]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with raises("OtherVersion", match="journal/1"):
        read_journal(path)
