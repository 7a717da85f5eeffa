"""How the texts of `workload.yaml` are spelled: sizes, versions, names and networks."""

import re
from fractions import Fraction
from ipaddress import ip_network
from typing import Annotated, Any

from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, WithJsonSchema
from pydantic_core import CoreSchema, core_schema

from winhost.core.dataclass import dataclass
from winhost.model.capabilities import CAPABILITIES
from winhost.model.errors import did_you_mean, visible
from winhost.model.units import SIZE_PATTERN, parse_size
from winhost.model.written import text_schema

BODY_BOUNDS = (
    *("n", "best_of", "max_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "sequences", "inputs", "stop"),
    *("stop_token_ids", "bad_words", "logit_bias", "allowed_token_ids", "logprob_token_ids"),
)
"""What the gateway bounds in a request: as winhost.gateway.request_rules has it."""


def says(text: str) -> Any:
    """The annotation of a field with its description."""
    return Field(description=text)


@dataclass(frozen=True)
class Spelled:
    """The annotation of a text that matches a pattern as a whole. what: its name in the error."""

    pattern: str
    what: str

    def __call__(self, text: str) -> str:
        if re.fullmatch(self.pattern, text):
            return text
        raise ValueError(f"is not {self.what}")

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self, handler(source))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return text_schema(self.pattern)


_PARAMETERS = r"([0-9]{1,6}(?:\.[0-9]{1,9})?) ?([MBT])"
_THOUSANDS = {"M": 10**6, "B": 10**9, "T": 10**12}
# As Windows has them, without what Task Scheduler takes for a variable.
_PERSON = r"""[^\s."/\\\[\]:;|=,+*?<>@%$]([^\x00-\x1f"/\\\[\]:;|=,+*?<>@%$]{0,18}[^\s."/\\\[\]:;|=,+*?<>@%$])?"""
_URL = r"https://[A-Za-z0-9.-]{1,253}(:[0-9]{1,5})?|http://127\.0\.0\.1:[0-9]{1,5}"
_FIELD = r"(?:chat_template_kwargs\.)?[A-Za-z_][A-Za-z0-9_]{0,63}"
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label of a name begins with a letter, and no address does.
_HOST = rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?(?::[0-9]{{1,5}})?"
_MODEL_NAME = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"


def _parameters(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    found = re.fullmatch(_PARAMETERS, value) if isinstance(value, str) else None
    if found is None or not Fraction(found[1]):
        raise ValueError("should be a number of parameters such as 8.03B, 494M, or a whole number")
    return int(Fraction(found[1]) * _THOUSANDS[found[2]])


def _capability(text: str) -> str:
    if text in CAPABILITIES:
        return text
    raise ValueError(f"'{visible(text)}' is no capability{did_you_mean(text, CAPABILITIES)}")


def is_model_name(text: str) -> bool:
    return re.fullmatch(_MODEL_NAME, text) is not None


def _bound(text: str) -> str:
    if text in BODY_BOUNDS:
        return text
    raise ValueError(f"'{visible(text)}' is no bound; there are {', '.join(BODY_BOUNDS)}")


def _network(text: str) -> str:
    try:
        network = ip_network(text)
    except ValueError:
        raise ValueError("is not a network such as 10.20.0.5/32 or 10.20.0.0/24") from None
    if not network.prefixlen:
        raise ValueError("is every address: any client could say that it is another")
    return str(network)


def _version(value: object) -> Version:
    # 12.10 without quotes is the number 12.1, so numbers are not taken for versions.
    if isinstance(value, str):
        try:
            return Version(value)
        except InvalidVersion:
            pass
    raise ValueError('should be a version in quotes, such as "0.33.0"')


def _kernel(value: object) -> object:
    """`uname -r` without what the distribution puts behind the number."""
    return value.partition("-")[0] if isinstance(value, str) else value


Size = Annotated[
    int,
    PlainValidator(parse_size),
    WithJsonSchema({"anyOf": [text_schema(SIZE_PATTERN), {"type": "integer", "minimum": 1}]}),
]
Parameters = Annotated[
    int,
    PlainValidator(_parameters),
    WithJsonSchema({"anyOf": [text_schema(_PARAMETERS), {"type": "integer", "minimum": 1}]}),
]
Capability = Annotated[str, AfterValidator(_capability), WithJsonSchema({"type": "string", "enum": list(CAPABILITIES)})]
NumberedVersion = Annotated[Version, PlainValidator(_version), WithJsonSchema({"type": "string"})]
Kernel = Annotated[NumberedVersion, BeforeValidator(_kernel), WithJsonSchema({"type": "string"})]
Network = Annotated[str, AfterValidator(_network)]
Count = Annotated[int, Field(ge=1, le=65_536)]
Tokens = Annotated[int, Field(ge=1, le=100_000_000)]
Bound = Annotated[str, AfterValidator(_bound), WithJsonSchema({"type": "string", "enum": list(BODY_BOUNDS)})]
ModelName = Annotated[
    str,
    Spelled(_MODEL_NAME, "a model name: letters, digits, '.', '_' and '-'; the model's repository goes to id"),
]
Commit = Annotated[
    str, Spelled(r"[0-9a-f]{40}", "a commit: 40 hexadecimal digits; a branch may lead elsewhere tomorrow")
]
KeyName = Annotated[
    str, Spelled(r"[A-Za-z0-9._-]{1,64}", "the name of an API key: up to 64 letters, digits, '.', '_' and '-'")
]
BodyField = Annotated[str, Spelled(_FIELD, "the name of a field")]
MediaHost = Annotated[str, Spelled(_HOST, "a host's name in small letters, without a URL")]
Program = Annotated[str, Spelled(r"[A-Za-z0-9][A-Za-z0-9 ._+-]{0,99}\.exe", "the name of a program's file")]
Person = Annotated[str, Spelled(_PERSON, "the name of a local account of Windows")]
Url = Annotated[str, Spelled(_URL, "https://, a host's name and perhaps a port, or http://127.0.0.1:PORT")]
