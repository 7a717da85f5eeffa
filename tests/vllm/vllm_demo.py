"""`make demo-vllm`: both demos, with a real vLLM on this computer's processor behind a real gateway.

The machines stay simulated; what the model answers comes from here, through the tunnel that ends each run.
"""

import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.connect.sshd import free_port
from tests.gateway.running import KEY, gateway
from tests.vllm.real_engine import NoVllm, RealEngine, installed, tiny_model
from winhost.cli.lab.demo import DdaDemo, Wsl2Demo
from winhost.cli.lab.demo_steps import MODEL, RealEndpoint, say


@contextmanager
def real_endpoint(folder: Path) -> Iterator[RealEndpoint]:
    """A tiny model of random weights, served. Raises NoVllm where none can be had."""
    if os.geteuid() != 0 or platform.machine() != "x86_64":
        raise NoVllm("it takes root on x86_64, for a network of its own")
    say("A real vLLM for processors: 5 GB, installed once and kept, then started with a tiny model of random weights.")
    python = installed()
    engine = RealEngine(python, tiny_model(python, folder / "model"), folder / "engine")
    try:
        engine.until_it_serves()
        address = ("127.0.0.1", free_port())
        listen = {"address": address[0], "port": address[1]}
        models = [{"name": MODEL, "served_as": "tiny", "engine": {"socket": str(engine.socket)}}]
        (folder / "gateway").mkdir()
        with gateway(folder / "gateway", {"listen": listen, "models": models}, engine_up=False):
            yield RealEndpoint(address, KEY)
    finally:
        engine.close()


def main() -> int:
    """0 also where it is skipped."""
    with tempfile.TemporaryDirectory(prefix="vllm-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # the engine is started as whoever may enter it
        try:
            with real_endpoint(folder) as real:
                for played in (Wsl2Demo, DdaDemo):
                    (folder / played.__name__).mkdir(mode=0o700)
                    played(folder / played.__name__, "contract", real).play()
        except NoVllm as why:
            say(f"Skipped: {why}. `make demo` has a stand-in answer instead.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
