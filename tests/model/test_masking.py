"""Secrets in what people paste: each canary is gone, what named it stays, and what is none stays whole."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.rows import each_row
from winhost.model.masking import MASK, masked

CANARY = "c4naryS3cr3tValue"

SECRETS = [
    "HF_TOKEN={}",
    "export HF_TOKEN='{}'",
    "-e HUGGING_FACE_HUB_TOKEN={} \\",
    "vllm serve model --api-key {} --port 8000",
    "vllm serve model --api-key={}",
    "non-default args: {{'model': 'm', 'api_key': ['{}']}}",
    "'api_key': '{}'",
    '"token": "{}", "x": 1',
    "Authorization: Bearer {}",
    "curl -H 'authorization: Basic {}' http://x",
    "proxy-authorization: {}",
    "Cookie: session={}; path=/",
    "Bearer {}",
    "https://user:{}@registry.example.com/v2/",
    "http://{}@proxy:3128",
    "https://x-access-token:{}@github.com/a/b.git",
    "https://hub.example.com/x?token={}&y=1",
    "https://acc.blob.core.windows.net/c?sv=2022&sig={}",
    "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=core.windows.net",
    "password: {}",
    "Password={};Database=x",
    'POSTGRES_PASSWORD: "{}"',
    "redis_password = '{}'",
    "sshpass -p x --password {}",
    "aws_secret_access_key = {}",
    "ConvertTo-SecureString '{}' -AsPlainText -Force",
    'ConvertTo-SecureString -String "{}" -AsPlainText',
    "X-Api-Key: {}",
    '$env:VLLM_API_KEY = "{}"',
    "recovery_password: {}",
    "hf_{}",
    "sk-proj-{}",
    "ghp_{}",
    "nvapi-{}",
    "glpat-{}",
    "eyJhbGciOi.{}.abcdefgh",
    "AKIAIOSFODNN{}",
    "-----BEGIN OPENSSH PRIVATE KEY----- {} -----END OPENSSH PRIVATE KEY-----",
]
KEPT = [
    "max_tokens=4096, num_tokens: 12",
    "tokenizer='Qwen/Qwen3-8B', tokenizer_mode=auto, skip_tokenizer_init=False",
    "eos_token_id=151645, pad_token_id: 0",
    "Avg generation throughput: 31.2 tokens/s",
    "NVRM: Xid (PCI:0000:10:1c): 79, GPU has fallen off the bus.",
    "Key was rejected by service",
    "module verification failed: signature and/or required key missing - tainting kernel",
    "Error code: Wsl/Service/CreateInstance/CreateVm/HCS/0x80070569",
    "See https://docs.vllm.ai/en/latest/usage/troubleshooting.html#python-multiprocessing",
    "hf_overrides={}, VLLM_USE_MODELSCOPE=False, hf_transfer is not installed",
    "git@github.com:a/b.git",
    "C:\\Users\\me\\.wslconfig:21",
    "NCCL INFO NET/Socket : Using [0]eth0:10.0.0.5<0>",
]


@each_row("written", SECRETS)
def test_a_secret_is_masked(written: str) -> None:
    secret = CANARY.upper() if written.startswith("AKIA") else CANARY
    shown = masked(f"11-22 10:54 INFO {written.format(secret)} and more")
    assert secret not in shown
    assert MASK in shown
    assert shown.startswith("11-22 10:54 INFO ")


@each_row("text", KEPT)
def test_what_is_no_secret_stays(text: str) -> None:
    assert masked(text) == text


def test_what_names_a_secret_stays() -> None:
    assert masked("docker run -e HF_TOKEN=hf_abcdefgh -p 8000:8000") == "docker run -e HF_TOKEN=*** -p 8000:8000"
    assert masked("https://user:pw@host/x") == "https://***@host/x"
    assert masked("Authorization: Bearer abc def") == "Authorization: ***"


@given(st.text(max_size=400))
def test_any_text_is_masked_in_time_and_twice_as_once(text: str) -> None:
    once = masked(text)
    assert masked(once) == once


@pytest.mark.parametrize("text", ["a" * 20_000, "token=" * 4_000, "://" * 9_000, '"' * 20_000, "-" * 20_000])
def test_hostile_lines_take_no_time(text: str) -> None:
    masked(text)
