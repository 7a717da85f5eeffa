"""A served model as a command for a shell, `docker run` or vLLM's own program, with every argument quoted."""

import shlex
from dataclasses import replace

from winhost.serving.choice import Served
from winhost.serving.containers import docker_words
from winhost.serving.engine_spec import EngineSpec

IMAGE = "vllm/vllm-openai"
DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""Not in commands to copy: everybody who reaches an engine in development mode can run code in it."""
ASKED_FOR = '"${VLLM_IMAGE:?the version of vllm is not stated}"'  # the shell stops here, and says why


def command(served: Served, vllm: str | None) -> list[str]:
    """The parts of a model's `docker run`, each for a line of its own. vllm: its version, None if unknown."""
    spec = replace(_copied(served), image=f"{IMAGE}:v{vllm}" if vllm else ASKED_FOR)
    words = [word if word == ASKED_FOR else quoted(word) for word in docker_words(spec)]
    return [f"docker run --detach {quoted(f'--name={served.model}')}", *words]


def program_command(served: Served) -> list[str]:
    """The parts with vLLM's own program, for a model whose process leaves its GPU, which no container's process can."""
    spec = _copied(served)
    variables = (quoted(f"{name}={value}") for name, value in spec.environment.items())
    model, *options = map(quoted, spec.arguments(spec.folder))
    return ["umask 0007; env", *variables, f"vllm serve {model}", *options]


def _copied(served: Served) -> EngineSpec:
    environment = {name: value for name, value in served.spec.environment.items() if name != DEV_MODE}
    return replace(served.spec, environment=environment)


def quoted(word: str) -> str:
    """Quote a word for bash. Characters that a terminal would interpret or hide are written as bytes."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        c if c.isalnum() and c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode(errors="surrogatepass"))
        for c in word
    )
    return f"$'{escaped}'"
