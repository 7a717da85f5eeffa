"""A served model as a command for a shell: the words of `docker run`, quoted so that each stays one word."""

import shlex

from winhost.serving.choice import ProfileLine, Served

IMAGE = "vllm/vllm-openai"
ASKED_FOR = '"${VLLM_IMAGE:?the version of vllm is not stated}"'  # the shell stops here, and says why


def command(served: Served, vllm: str | None) -> list[str]:
    """Its parts, of which each goes on a line of its own. vllm: its version, where it is known."""
    name = quoted(f"--name={served.model}")
    before = [_words(line) for line in served.lines if line.kind in ("container", "env")]
    after = [_words(line) for line in served.lines if line.kind == "engine"]
    model = [quoted(served.id), quoted(f"--served-model-name={served.model}"), f"--port={served.port}"]
    image = quoted(f"{IMAGE}:v{vllm}") if vllm else ASKED_FOR
    return [f"docker run --detach {name}", *before, image, *model, *after]


def _words(line: ProfileLine) -> str:
    if line.kind == "env":
        return f"--env={quoted(f'{line.name}={line.value}')}"
    return quoted(line.name if line.value is None else f"{line.name}={line.value}")


def quoted(word: str) -> str:
    """For bash. What a terminal would obey or hide is written by its bytes, which bash makes the same word of."""
    if word.isprintable():
        return shlex.quote(word)
    escaped = "".join(
        c if c.isalnum() and c.isascii() else "".join(f"\\x{b:02x}" for b in c.encode(errors="surrogatepass"))
        for c in word
    )
    return f"$'{escaped}'"
