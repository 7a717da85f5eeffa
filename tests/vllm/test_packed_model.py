"""A real vLLM on the processor loads a packed model by our plugin, with a stand-in for nvCOMP."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from tests.vllm.real_engine import HERE, NoVllm, environment, installed, tiny_model
from winhost.serving.packed_weights import write_wheel

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # the first time, it is fetched


def test_it_answers_as_the_original_also_when_its_weights_are_loaded_again(tmp_path: Path) -> None:
    try:
        python = installed()
    except NoVllm as why:
        pytest.skip(str(why))
    model = tiny_model(python, tmp_path / "tiny")
    named = tmp_path / "site/stand_in-1.dist-info"  # vLLM calls it in every worker
    named.mkdir(parents=True)
    (named / "METADATA").write_text("Metadata-Version: 2.1\nName: stand-in\nVersion: 1\n")
    (named / "entry_points.txt").write_text("[vllm.general_plugins]\nstand_in = packed_model:stand_in\n")
    done = subprocess.run(
        [str(python), str(HERE / "packed_model.py"), str(model), str(tmp_path)],
        capture_output=True,
        text=True,
        env=environment(
            PYTHONPATH=":".join(map(str, (write_wheel(tmp_path), named.parent, HERE))),
            VLLM_CPU_OMP_THREADS_BIND="nobind",
        ),
        timeout=3 * PATIENCE_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    first, again = said["plain"]
    assert first == again
    assert said["packed"] == said["plain"]
    plain, packed = said["two ranks"]
    assert packed == plain, "two ranks load other parts of packed weights"
    assert said["again"], "what was packed is packed a second time"
    assert said["same"]
    assert said["codecs"] == ["ans-f2", "raw"]
    assert said["packed again"] == "model.safetensors is packed already"
    assert "a folder of its own" in said["onto itself"]
    assert "is damaged" in said["damaged"]
    assert said["unpacked"] == said["damaged"]
    assert said["left"] == []
    assert said["replaced"], "every original that is packed right is deleted"
    assert "is another file than the one that was packed, and stays" in said["other"]
    assert said["other stays"]
    assert "is a link, and stays" in said["linked"]
    assert said["not replaced"] == said["damaged"]
    assert said["original stays"]
