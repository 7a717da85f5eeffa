"""The command of a model, read by a real shell."""

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.processes import PATIENCE_S
from tests.serving.situations import ONE_GPU, ROOT, model, shipped, workload
from winhost.model.workload import ModelState
from winhost.serving.choice import Serving, serving
from winhost.serving.containers import DEV_MODE, command, quoted
from winhost.serving.engine_names import slug

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="there is no bash on this machine")
HOSTILE = {
    name: case["value"]
    for name, case in yaml.safe_load((ROOT / "tests/data/powershell/hostile.yaml").read_text("utf-8")).items()
    if case["value"] and not re.search("[\0\ud800-\udfff]", case["value"])  # a process cannot be given these
} | {
    "dashes": "--rm",
    "bell-and-digit": "\a0",
    "right-to-left": "a\u202eb",
    "new line": "a\nrm -rf /",
    "both quotes": "'\"$(id)`id`",
}


def words(script: str) -> list[str]:
    assert BASH is not None
    shell = "docker() { printf '%s\\0' \"$@\"; }\n" + script
    done = subprocess.run(
        [BASH, "-c", shell], capture_output=True, check=True, env={"LC_ALL": "C.UTF-8"}, timeout=PATIENCE_S
    )
    return done.stdout.decode("utf-8").split("\0")[:-1]


def commanded(found: Serving) -> list[str]:
    served = found.models[0]
    return command(served.model, served.spec, found.vllm)


@pytest.mark.costly
@needs_bash
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_word_stays_one_word_and_shows_nothing_that_is_obeyed(value: str) -> None:
    assert quoted(value).isprintable()
    assert words(f"docker {quoted(value)}") == [value]


@pytest.mark.costly
@needs_bash
@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_model_gets_the_same_command(value: str) -> None:
    plain = model("chat", id="some/model", state=ModelState.SLEEPING)
    expected = [word.replace("chat", slug(value) if "/" in word else value) for word in _said(plain)]
    assert _said(replace(plain, name=value)) == expected
    assert _said(replace(plain, id=value)) == _said(plain)


def _said(each: object) -> list[str]:
    found = serving(shipped(ONE_GPU), workload(each))  # type: ignore[arg-type]
    return words(" \\\n  ".join(commanded(found)))


@needs_bash
def test_without_a_version_the_shell_stops_and_says_why() -> None:
    found = serving(shipped(ONE_GPU), workload(model(), vllm=None))
    assert BASH is not None
    script = "docker() { echo ran; }\n" + " ".join(commanded(found))
    done = subprocess.run([BASH, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode != 0
    assert done.stdout == ""
    assert "the version of vllm is not stated" in done.stderr
    known = subprocess.run(
        [BASH, "-c", script], capture_output=True, text=True, env={"VLLM_IMAGE": "mine:1"}, timeout=PATIENCE_S
    )
    assert known.stdout == "ran\n"


def test_what_people_copy_is_never_in_development_mode() -> None:
    found = serving(shipped(ONE_GPU), workload(model(state=ModelState.SLEEPING))).models[0]
    assert any(line.name == DEV_MODE for line in found.lines), "behind the gateway it is"
    assert DEV_MODE not in " ".join(command(found.model, found.spec, "0.33.0"))


def test_order_is_container_image_model_engine(tmp_path: Path) -> None:
    found = serving(shipped(ONE_GPU), workload(model(id="some/model")))
    parts = commanded(found)
    image, place = parts.index("vllm/vllm-openai:v0.33.0"), parts.index("/model")
    assert place == image + 3
    assert all(
        part.startswith(("--gpus", "--network", "--shm", "--volume", "--env", "--stop", "--entry"))
        for part in parts[1:image]
    )
