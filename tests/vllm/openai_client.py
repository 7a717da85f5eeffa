"""What a client does with the real `openai` package: `python openai_client.py WHAT`, by vLLM's Python. Prints JSON.

URL and KEY come from the environment.
"""

import asyncio
import json
import os
import sys
from typing import Any

import openai

from tests.processes import PATIENCE_S

URL, KEY = os.environ["URL"], os.environ["KEY"]
MODEL = "org/tiny"
STREAMS, TOKENS = 200, 24


def client(key: str = KEY) -> Any:
    return openai.OpenAI(base_url=f"{URL}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S)


def basics() -> dict[str, Any]:
    """A completion, a chat, and both as streams."""
    to = client()
    chat = [{"role": "user", "content": "One two three"}]
    plain = to.completions.create(model=MODEL, prompt="One two", max_tokens=8)
    streamed = list(to.completions.create(model=MODEL, prompt="One two", max_tokens=8, stream=True))
    said = to.chat.completions.create(model=MODEL, messages=chat, max_tokens=8)
    parts = list(to.chat.completions.create(model=MODEL, messages=chat, max_tokens=8, stream=True))
    return {
        "models": [each.id for each in to.models.list().data],
        "completion": plain.usage.completion_tokens,
        "stream": streamed[-1].choices[0].finish_reason,
        "chat": said.choices[0].message.role,
        "chat_stream": parts[-1].choices[0].finish_reason,
    }


def errors() -> dict[str, Any]:
    """By the classes that clients catch."""
    found = {}
    tried = {
        "wrong model": lambda: client().completions.create(model="nobody", prompt="a"),
        "too long": lambda: client().completions.create(model=MODEL, prompt=[5] * 600, max_tokens=1),
        "wrong key": lambda: client("wh-" + "x" * 40).completions.create(model=MODEL, prompt="a"),
        "wrong type": lambda: client().completions.create(model=MODEL, prompt="a", max_tokens="many"),
    }
    for name, act in tried.items():
        try:
            act()
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.status_code, str(error)[:200]]
    return found


async def one(to: Any, number: int) -> dict[str, Any]:
    """The answer begins with its own prompt, so that another's would show."""
    prompt = f"Stream number {number} of all."
    stream = await to.completions.create(
        model=MODEL,
        prompt=prompt,
        max_tokens=TOKENS,
        stream=True,
        extra_body={"echo": True, "ignore_eos": True},
        stream_options={"include_usage": True},
    )
    text, end, tokens = "", None, None
    async for part in stream:
        if part.usage:
            tokens = part.usage.completion_tokens
        for choice in part.choices:
            text += choice.text
            end = choice.finish_reason or end
    return {"own": text.startswith(prompt), "end": end, "tokens": tokens}


async def many() -> list[dict[str, Any]]:
    """All streams at once."""
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key=KEY, max_retries=0, timeout=300) as to:
        return list(await asyncio.gather(*(one(to, number) for number in range(STREAMS))))


if __name__ == "__main__":
    answers = {"basics": basics, "errors": errors, "many": lambda: asyncio.run(many())}
    sys.stdout.write(json.dumps(answers[sys.argv[1]]()))
