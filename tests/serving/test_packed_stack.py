"""A workload with load_format packed on a simulated Linux: what a plan adds, in which order, and what it takes back."""

from dataclasses import replace
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest

from tests.engine.linux_world import LinuxWorld, linux_world
from tests.rows import each_row
from tests.serving.stacks import FILES, request, stack_on
from winhost.engine.rollback import rollback
from winhost.lab.linux.serving import ServedEngines
from winhost.model.workload import LoadFormat, ModelState, Workload
from winhost.resources.host import HostFacts
from winhost.serving.choice import serving
from winhost.serving.entries import PythonWheels
from winhost.serving.packed_entries import loader_folder
from winhost.serving.packed_weights import package_texts
from winhost.serving.stack import Stack, StackRequest, stack

NVCOMP = PythonWheels("3.12", "/srv/wheels", (f"sha256:{'1' * 64} 1 nvcomp-6.0.0-py3-none-any.whl",))
PACKED = "/srv/winhost/models/chat--packed"


def packed(**changed: Any) -> StackRequest:
    plain = request(vllm="0.24.0", nvcomp=NVCOMP, **changed)
    models = tuple(replace(each, load_format=LoadFormat.PACKED) for each in plain.workload.models)
    return replace(plain, workload=replace(plain.workload, models=models))


def entries(found: Stack, resource: str) -> list[dict[str, Any]]:
    return [dict(each) for each in found.entries if each["resource"] == resource]  # type: ignore[index, call-overload, arg-type]


def made(tmp_path: Path, asked: StackRequest) -> tuple[LinuxWorld, Stack]:
    here = linux_world(tmp_path)
    return here, stack_on(here, asked)


@pytest.mark.costly
@pytest.mark.parametrize("runtime", ["docker", "/opt/vllm/bin/vllm"])
def test_it_is_packed_after_it_came_and_before_its_engine_starts_and_taken_back(runtime: str, tmp_path: Path) -> None:
    asked = packed(runtime=runtime) if runtime != "/opt/vllm/bin/vllm" else packed(runtime=runtime, image=None)
    here, _ = made(tmp_path, asked)
    disk = here.own.linux.disk
    assert here.apply(here.plan()).holds
    assert disk.list_names(PACKED) == ["model.safetensors"]
    assert disk.list_names("/srv/winhost/models/chat"), "the original stays"
    assert [*here.plan().steps] == []
    first = here.run
    disk.remove(f"{PACKED}/model.safetensors")
    assert [step.resource for step in here.plan().steps] == ["PackedModel"]
    here.own.linux.part(ServedEngines).update_unit("winhost-engine-chat.service", active=False)
    order = ["PackedModel", "EngineUnit", "ServingReady"]
    assert [step.resource for step in here.plan().steps] == order
    assert here.apply(here.plan()).holds
    assert here.rollback().outcome == "rolled back"
    assert disk.list_names(PACKED) == [], "as it was before that run"
    assert rollback(first, here.consents, here.context).outcome == "rolled back"
    assert disk.list_names(PACKED) == []
    assert disk.list_names(loader_folder()) == []
    assert not [path for path, _ in disk.walk("/srv") if "packed" in path]


def test_the_engine_finds_the_loader_in_its_container_and_as_a_program(tmp_path: Path) -> None:
    path = f"{loader_folder()}:{NVCOMP.site}"
    (unit,) = entries(made(tmp_path, packed(runtime="podman"))[1], "EngineUnit")
    text = unit["desired"]["text"]
    assert f'"--volume={PACKED}:/model:ro"' in text
    assert all(f'"--volume={folder}:{folder}:ro"' in text for folder in path.split(":"))
    assert f'"--env=PYTHONPATH={path}"' in text
    assert '"--load-format=packed"' in text
    (unit,) = entries(made(tmp_path, packed(runtime="/opt/vllm/bin/vllm", image=None))[1], "EngineUnit")
    text = unit["desired"]["text"]
    program = '"/opt/vllm/bin/python3" "-m" "vllm.entrypoints.cli.main" serve'
    assert f'ExecStart={program} "{PACKED}"' in text, "commands of an environment of ours see no PYTHONPATH"
    assert f'Environment="PYTHONPATH={path}"' in text


def test_what_packs_has_no_network_and_writes_into_one_folder(tmp_path: Path) -> None:
    (made_by,) = entries(made(tmp_path, packed(runtime="podman"))[1], "PackedModel")
    words = made_by["desired"]["command"]
    assert {"podman", "--network=none", "--cap-drop=ALL", "--security-opt=no-new-privileges"} <= {*words}
    writable = [word for word in words if word.startswith("--volume=") and not word.endswith(":ro")]
    assert writable == [f"--volume={PACKED}:/packed"]
    assert words[-5:] == ["-m", "winhost_weights", "pack", "/model", "/packed"]
    (made_by,) = entries(made(tmp_path, packed(runtime="/opt/vllm/bin/vllm", image=None))[1], "PackedModel")
    words = made_by["desired"]["command"]
    sandbox = {"PrivateNetwork=yes", "ProtectSystem=strict", "CapabilityBoundingSet=", f"ReadWritePaths={PACKED}"}
    assert {f"--property={each}" for each in sandbox} <= {*words}
    assert words[-6:-2] == ["/opt/vllm/bin/python3", "-m", "winhost_weights", "pack"]


def test_the_loader_is_the_package_of_winhost(tmp_path: Path) -> None:
    _, found = made(tmp_path, packed())
    folders = {each["key"]["path"]: each["desired"]["files"] for each in entries(found, "LinuxFolder")}
    assert folders[f"{loader_folder()}/winhost_weights"] == package_texts()
    texts = {each["key"]["path"]: each["desired"]["text"] for each in entries(found, "LinuxFile")}
    assert "vllm.general_plugins" in texts[f"{loader_folder()}/winhost_weights.dist-info/entry_points.txt"]


def test_room_for_both_is_told(tmp_path: Path) -> None:
    notes = "\n".join(made(tmp_path, packed(image=None, runtime="/opt/vllm/bin/vllm"))[1].notes)
    assert "for packed weights of chat; the originals stay beside them" in notes
    assert "nvCOMP, 1 bytes, NVIDIA's under a licence of its own" in notes
    assert "--packed" not in "\n".join(map(str, made(tmp_path, request())[1].entries))


@each_row(
    ("changed", "says"),
    [
        ({"nvcomp": None}, "needs nvCOMP"),
        ({"files": {"chat": {**FILES, "files": [f"sha256:{'ef' * 32} 5 pytorch_model.bin"]}}}, "has no safetensors"),
        ({"files": {"chat": {**FILES, "files": [f"git-sha1:{'ef' * 20} 5 a.safetensors"]}}}, "has no safetensors"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_name(changed: dict[str, Any], says: str, tmp_path: Path) -> None:
    here = linux_world(tmp_path)
    with pytest.raises(ValueError, match=says):
        stack(HostFacts(here.facts(())), replace(packed(), **changed))


def test_a_workload_without_it_brings_nothing_of_it(tmp_path: Path) -> None:
    found = made(tmp_path, request())[1]
    assert isinstance(found, Stack)
    assert isinstance(request().workload, Workload)
    assert not entries(found, "PackedModel")
    assert not [each for each in entries(found, "LinuxFile") if "weights" in each["key"]["path"]]


def test_python_finds_the_loader_in_its_folder(tmp_path: Path) -> None:
    _, found = made(tmp_path, packed())
    for each in entries(found, "LinuxFile"):
        if each["key"]["path"].startswith(loader_folder()):
            file = tmp_path / "loader" / each["key"]["path"].removeprefix(f"{loader_folder()}/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(each["desired"]["text"], "utf-8")
    (package,) = distributions(path=[str(tmp_path / "loader")])
    (entry,) = package.entry_points
    assert (entry.group, entry.module) == ("vllm.general_plugins", "winhost_weights.vllm_loader")


def test_a_swap_to_packed_weights_is_estimated_by_what_was_measured_of_them(tmp_path: Path) -> None:
    seconds = {}
    for asked in (request(vllm="0.24.0"), packed()):
        models = [replace(each, state=ModelState.SLEEPING, sleep_level=2) for each in asked.workload.models]
        turns = replace(asked.workload, models=(*models, replace(models[0], name="other")))
        (served, _) = serving(HostFacts(linux_world(tmp_path).facts(())), turns).models
        assert served.asleep is not None
        seconds[served.asleep.rung] = served.asleep.seconds
    assert [*seconds] == ["level 2", "level 2, packed"]
    assert seconds["level 2, packed"] < seconds["level 2"]  # type: ignore[operator]
