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


USUAL: dict[str, Any] = {
    "temperature": 0.5,
    "top_p": 0.9,
    "n": 2,
    "seed": 7,
    "stop": ["\n"],
    "max_completion_tokens": 8,
    "presence_penalty": 0.1,
    "frequency_penalty": 0.1,
    "logprobs": True,
    "top_logprobs": 3,
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "service_tier": "auto",
    "safety_identifier": "s",
    "prompt_cache_key": "k",
    "verbosity": "low",
    "reasoning_effort": "low",
}
BY_VLLM: dict[str, Any] = {
    "top_k": 20,
    "min_p": 0.05,
    "repetition_penalty": 1.1,
    "stop_token_ids": [2],
    "min_tokens": 1,
    "skip_special_tokens": False,
    "chat_template_kwargs": {"enable_thinking": False},
    "structured_outputs": None,  # with a grammar this tiny model gets a 500 of vLLM itself, also without the gateway
    "priority": 0,
    "cache_salt": None,
}
REFUSED: dict[str, Any] = {
    "priority": -1,
    "cache_salt": "a",
    "kv_transfer_params": {"remote_host": "10.0.0.1"},
    "chat_template": "x",
    "prompt_logprobs": 1,
    "request_id": "a",
    "nothing": 1,
}


def fields() -> dict[str, Any]:
    """What clients usually send, and what is refused: by the class of the error and the field that it names."""
    to, chat = client(), [{"role": "user", "content": "One two three"}]
    said = to.chat.completions.create(model=MODEL, messages=chat, extra_body=BY_VLLM, **USUAL)
    found: dict[str, Any] = {"answers": len(said.choices)}
    image = {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}
    tried: dict[str, dict[str, Any]] = {name: {"extra_body": {name: value}} for name, value in REFUSED.items()}
    tried |= {"n": {"n": 1000}, "image_url": {"messages": [{"role": "user", "content": [image]}]}}
    for name, more in tried.items():
        try:
            to.chat.completions.create(**{"model": MODEL, "messages": chat, "max_tokens": 1, **more})
        except openai.APIStatusError as error:
            found[name] = [type(error).__name__, error.param]
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
    answers = {"basics": basics, "errors": errors, "fields": fields, "many": lambda: asyncio.run(many())}
    sys.stdout.write(json.dumps(answers[sys.argv[1]]()))
