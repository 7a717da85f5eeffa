"""A served model as a command for a shell, `docker run` or vLLM's own program, with every argument quoted."""

import shlex
from collections.abc import Iterator

from winhost.serving.choice import Served
from winhost.serving.containers import docker_options
from winhost.serving.engine_names import MODEL

IMAGE = "vllm/vllm-openai"
START = 'umask 0007; exec vllm serve "$0" "$@"'
"""A shell that lets the socket's group connect: vLLM makes its socket as the umask says."""
DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""Left out of what people copy: whoever reaches an engine in development mode runs code in it."""
ASKED_FOR = '"${VLLM_IMAGE:?the version of vllm is not stated}"'  # the shell stops here, and says why


def command(served: Served, vllm: str | None) -> list[str]:
    """Its parts, each for a line of its own. vllm: its version, where it is known."""
    spec = served.spec
    name = quoted(f"--name={served.model}")
    before = [*map(quoted, docker_options(spec.container)), *(f"--env={each}" for each in _variables(served))]
    image = quoted(f"{IMAGE}:v{vllm}") if vllm else ASKED_FOR
    shell = ["--entrypoint=/bin/sh", image, "-c", quoted(START)]
    return [f"docker run --detach {name}", *before, *shell, *map(quoted, spec.arguments(MODEL))]


def program_command(served: Served) -> list[str]:
    """The same with vLLM's own program, of a model whose process leaves its GPU, which no container's can."""
    model, *options = map(quoted, served.spec.arguments(served.spec.folder))
    return ["umask 0007; env", *_variables(served), f"vllm serve {model}", *options]


def _variables(served: Served) -> Iterator[str]:
    return (quoted(f"{name}={value}") for name, value in served.spec.environment.items() if name != DEV_MODE)


def quoted(word: str) -> str:
    """Quote a word for bash. Characters that a terminal would interpret or hide are written as bytes."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        c if c.isalnum() and c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode(errors="surrogatepass"))
        for c in word
    )
    return f"$'{escaped}'"
