"""A served model as a command for a shell, `docker run` or vLLM's own program, with every argument quoted."""

import shlex

from winhost.model.workload import LoadFormat
from winhost.serving.choice import Served
from winhost.serving.engine_names import MODEL, model_folder, packed_folder
from winhost.serving.profile_lines import ProfileLine

IMAGE = "vllm/vllm-openai"
START = 'umask 0007; exec vllm serve "$0" "$@"'
"""A shell that lets the socket's group connect: vLLM makes its socket as the umask says."""
DEV_MODE = "VLLM_SERVER_DEV_MODE"
"""Left out of what people copy: whoever reaches an engine in development mode runs code in it."""
ASKED_FOR = '"${VLLM_IMAGE:?the version of vllm is not stated}"'  # the shell stops here, and says why


def command(served: Served, vllm: str | None) -> list[str]:
    """Its parts, each for a line of its own. vllm: its version, where it is known."""
    name = quoted(f"--name={served.model}")
    before = [_words(line) for line in served.lines if line.kind in ("container", "env") and line.name != DEV_MODE]
    after = [_words(line) for line in served.lines if line.kind == "engine"]
    model = [MODEL, quoted(f"--served-model-name={served.served_name}")]
    image = quoted(f"{IMAGE}:v{vllm}") if vllm else ASKED_FOR
    return [f"docker run --detach {name}", *before, "--entrypoint=/bin/sh", image, "-c", quoted(START), *model, *after]


def is_packed(served: Served) -> bool:
    return any(line.text == f"--load-format={LoadFormat.PACKED}" for line in served.lines)


def folder_of(served: Served) -> str:
    """The folder with its files."""
    return (packed_folder if is_packed(served) else model_folder)(served.served_name)


def program_command(served: Served) -> list[str]:
    """The same with vLLM's own program, of a model whose process leaves its GPU, which no container's can."""
    variables = [quoted(f"{each.name}={each.value}") for each in served.lines if each.kind == "env"]
    before = [each for each in variables if not each.startswith(DEV_MODE)]
    after = [_words(line) for line in served.lines if line.kind == "engine"]
    name = quoted(f"--served-model-name={served.served_name}")
    return ["umask 0007; env", *before, f"vllm serve {quoted(folder_of(served))}", name, *after]


def _words(line: ProfileLine) -> str:
    if line.kind == "env":
        return f"--env={quoted(f'{line.name}={line.value}')}"
    return " ".join(map(quoted, line.words))


def quoted(word: str) -> str:
    """Quote a word for bash. Characters that a terminal would interpret or hide are written as bytes."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        c if c.isalnum() and c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode(errors="surrogatepass"))
        for c in word
    )
    return f"$'{escaped}'"
