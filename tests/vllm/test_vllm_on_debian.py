"""winhost serve, with a real vLLM behind the gateway, both as units of a real Debian."""

import os
import platform
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.linux.debian import Debian, NoDebian
from tests.linux.serving_debian import (
    ENGINE,
    GATEWAY,
    KEY_VARIABLE,
    METRICS_VARIABLE,
    MODEL,
    NAME,
    SOCKET,
    Serving,
    furnished,
)
from tests.linux.test_debian_gateway import KEY
from tests.vllm.real_engine import LENGTH, VERSION, NoVllm, environment, installed, tiny_model

pytestmark = [pytest.mark.real, pytest.mark.timeout(2400)]  # the first time, both are fetched

PACKAGES, MODEL_FOLDER, LIBRARIES = "/opt/vllm", "/opt/tiny", "/opt/libraries"


@pytest.fixture(scope="module")
def serve(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Serving]:
    """vLLM's packages come from outside; its Python is Debian's own, so both have to be of one version."""
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        pytest.skip("it takes root on x86_64")
    folder = tmp_path_factory.mktemp("debian")
    try:
        python = installed()
        (packages,) = python.parents[1].glob("lib/python3.*/site-packages")
        if packages.parent.name != "python3.11":
            pytest.skip(f"vLLM is installed for {packages.parent.name}, and Debian 12 has python3.11")
        tiny = tiny_model(python, folder / "tiny")
        libraries = numa(folder)
        binds = (f"{packages}:{PACKAGES}", f"{tiny}:{MODEL_FOLDER}", f"{libraries}:{LIBRARIES}")
        made = WithVllm(pytestconfig.cache.mkdir("debian") / "base", folder / "machine", binds)
    except (NoDebian, NoVllm) as why:
        pytest.skip(str(why))
    asked = made.agent()
    words = f"--uds={SOCKET} --served-model-name=tiny --max-model-len={LENGTH} --enforce-eager --shutdown-timeout=30"
    given = {**environment(), "PYTHONPATH": PACKAGES, "LD_LIBRARY_PATH": LIBRARIES, "HOME": "/var/lib/engine"}
    lines = [f"Environment={name}={value}" for name, value in given.items() if name not in ("PATH", "LANG")]
    start = f"ExecStart=/usr/bin/python3.11 -m vllm.entrypoints.cli.main serve {MODEL_FOLDER} {words}"
    try:
        yield furnished(made, asked, folder, KEY, VERSION, "\n".join([*lines, start, ""]))
    finally:
        asked.close()
        made.close()


class WithVllm(Debian):
    """With what is bound into it, as OURS:THEIRS."""

    def __init__(self, base: Path, folder: Path, binds: tuple[str, ...]) -> None:
        self.devices = binds
        folder.mkdir()
        super().__init__(base, folder)


def numa(folder: Path) -> Path:
    """libnuma, which Debian's minimum lacks and has no network to fetch."""
    found = [path for path in Path("/usr/lib/x86_64-linux-gnu").glob("libnuma.so.1*") if not path.is_symlink()]
    if not found:
        raise NoVllm("there is no libnuma here (Debian: libnuma1)")
    (folder / "libraries").mkdir()
    (folder / "libraries/libnuma.so.1").write_bytes(found[0].read_bytes())
    return folder / "libraries"


def test_a_real_vllm_is_started_tested_told_of_and_stopped(serve: Serving) -> None:
    said = serve("up", NAME, "--within", "15m", "--json")
    assert said.code == 0, (said.out, said.err, serve("logs", NAME).out[-3000:])
    for phase in ("starting", "warming up"):  # what lies between may be over before anybody asks again
        assert f"{MODEL}: {phase}" in said.err

    found = serve("status", NAME, "--metrics-key", f"env:{METRICS_VARIABLE}", "--json")
    (model,) = found.result["models"]
    assert (found.code, model["state"], model["length"], model["running"]) == (0, "serving", LENGTH, 0)
    assert model["version"].partition("+")[0] == VERSION
    assert found.result["gateway"]["ready"] is True

    said = serve("test", NAME, "--api-key", f"env:{KEY_VARIABLE}", "--json")
    assert said.code == 0, said.out
    tested = {each["check"]: each for each in said.result["requests"]}
    assert [each["status"] for each in tested.values()] == [200, 200, 400, 404, 401, 404]
    assert tested["stream"]["tokens"] == 64
    assert tested["stream"]["per_second"] > 0

    assert "Application startup complete." in serve("logs", NAME, "--model", MODEL, "-n", "1000").out
    assert f"/v1/completions model={MODEL} 200" in serve("logs", NAME, "--gateway").out

    said = serve("down", NAME, "--yes", "--json")
    assert [(each["source"], each["outcome"]) for each in said.result["units"]] == [
        ("gateway", "stopped"),
        (MODEL, "stopped"),
    ]
    left = serve.debian.run("systemctl", "show", "--property=Result", "--value", ENGINE, GATEWAY)
    assert set(left.split()) == {"success"}


def test_what_this_platform_refuses_is_told_with_its_remedy(serve: Serving) -> None:
    """A profile for GPUs, on a machine that has none."""
    unit = serve.debian.root / "etc/systemd/system" / ENGINE
    unit.write_text(unit.read_text().replace("--enforce-eager", "--enforce-eager --enable-sleep-mode"))
    serve.debian.run("systemctl", "daemon-reload")
    said = serve("up", NAME, "--within", "10m", "--json")
    error = said.result["error"]
    assert (said.code, error["kind"]) == (1, "StartFailed")
    assert "This platform has no sleep mode." in error["what"]
    assert serve("status", NAME, "--json").result["models"][0]["state"] in ("failed", "stopped")
