"""The rules for the body of a request: fields by route, bounds, and hosts of media.

vLLM accepts any field, and obeys many that are meant for its operator. So these lists name the fields that clients may
send: those of vLLM's request models (0.11.0, 0.17.0, 0.24.0, 0.32.0 and 0.33.0 were read) and of the openai client,
without RESERVED. A model's settings may allow more.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .settings_values import WrongSettings, number, table

CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/v1/rerank", "/v1/score"


def split_names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMMON = split_names("model user truncate_prompt_tokens truncation_side")
_GENERATING = _COMMON | split_names(
    """
    stream stream_options stream_interval temperature top_p top_k min_p seed stop stop_token_ids ignore_eos min_tokens
    max_tokens frequency_penalty presence_penalty repetition_penalty length_penalty logit_bias bad_words
    allowed_token_ids logprobs top_logprobs logprob_token_ids n best_of echo skip_special_tokens add_special_tokens
    spaces_between_special_tokens include_stop_str_in_output thinking_token_budget include_reasoning response_format
    structured_outputs structural_tag guided_json guided_regex guided_choice guided_grammar guided_whitespace_pattern
    guided_decoding_backend return_token_ids return_tokens_as_token_ids return_token_offsets metadata store
    service_tier safety_identifier prompt_cache_key prompt_cache_options prompt_cache_retention reasoning
    reasoning_effort thinking enable_thinking thinking_budget verbosity moderation
    """
)
_TEMPLATED = split_names("messages add_generation_prompt continue_final_message chat_template_kwargs")
_POOLING = _COMMON | split_names("add_special_tokens use_activation activation normalize instruction")
_SCORING = _POOLING | split_names("chat_template_kwargs max_tokens_per_query max_tokens_per_doc documents")

FIELDS: Mapping[str, frozenset[str]] = {
    CHAT: _GENERATING
    | _TEMPLATED
    | split_names(
        """
        max_completion_tokens tools tool_choice parallel_tool_calls functions function_call documents modalities audio
        prediction web_search_options return_prompt_text
        """
    ),
    COMPLETION: _GENERATING | split_names("prompt suffix"),
    RESPONSES: _GENERATING
    | split_names(
        """
        input instructions max_output_tokens max_tool_calls tools tool_choice parallel_tool_calls text include prompt
        truncation chat_template_kwargs context_management client_metadata
        """
    ),
    EMBEDDINGS: _POOLING
    | _TEMPLATED
    | split_names("input dimensions encoding_format embed_dtype endianness input_type truncate"),
    RERANK: _SCORING | split_names("query top_n return_documents max_chunks_per_doc"),
    SCORE: _SCORING | split_names("text_1 text_2 data_1 data_2 queries items"),
}

_OPERATOR = "it is for whoever operates the engine"
_TRANSFER = "it names other engines, to which this one would connect"
_EMBEDS = "the engine would load serialized tensors of a client"
RESERVED: Mapping[str, str] = {
    "kv_transfer_params": _TRANSFER,
    "ec_transfer_params": _TRANSFER,
    "chat_template": "it is a program that the engine would run, for as long as that takes",
    "prompt_embeds": _EMBEDS,
    "image_embeds": _EMBEDS,
    "audio_embeds": _EMBEDS,
    "video_embeds": _EMBEDS,
    "image_pil": _EMBEDS,
    "uuid": "by it one client gets media that another one sent",
    "prompt_logprobs": "the engine takes GPU memory for it that it has not set aside, and may end",
    "priority": "it puts one client before the others",
    "request_id": "engines tell requests apart by it, and two could have the same",
    "session_id": _OPERATOR,
    "cache_salt": "by it a client finds out what others asked, or fills the cache of prefixes",
    "logits_processors": "it names programs that the engine would load",
    "vllm_xargs": "it is for programs that an operator adds to the engine",
    "mm_processor_kwargs": "it changes how much memory the engine takes for media",
    "media_io_kwargs": "it changes how much memory the engine takes for media",
    "use_beam_search": "each token becomes a request for every beam",
    "repetition_detection": "the engine searches patterns of any length for it at each token",
    "padding": "the engine would compute on the longest sequence for each input",
    "background": "the engine keeps answers in memory, of all clients in one place",
    "previous_response_id": "the engine keeps answers in memory, of all clients in one place",
    "conversation": "the engine keeps answers in memory, of all clients in one place",
    "previous_input_messages": _OPERATOR,
    "enable_response_messages": _OPERATOR,
    "mm_payload": _OPERATOR,
    "return_mm_kwargs": _OPERATOR,
    "return_weight_versions": _OPERATOR,
    "routed_experts_prompt_start": _OPERATOR,
    "watermarking": _OPERATOR,
}
"""Fields of vLLM that are on no list, and the reasons."""

_SAME_AS_NONE: Mapping[str, object] = {"priority": 0, "use_beam_search": False, "background": False}

# vLLM passes all fields of a template to the tokenizer, which reads `padding`, `max_length` and others as settings.
TEMPLATE_FIELDS = split_names(
    """
    enable_thinking thinking thinking_budget thinking_mode reasoning_effort reasoning preserve_thinking clear_thinking
    truncate_history_thinking drop_thinking add_vision_id date_string model_identity tools_in_user_message
    """
)
_MAX_TEMPLATE_TEXT = 1000

_TOKENS = 1_048_576
BOUNDS: Mapping[str, tuple[int, int]] = {
    "n": (1, 16),
    "best_of": (1, 16),
    "max_tokens": (0, _TOKENS),
    "logprobs": (0, 20),
    "top_logprobs": (0, 20),
    "prompt_logprobs": (0, 20),
}
"""The least and the most that a number may be. vLLM's own bound of `n` is 16,384, and -1 means the whole vocabulary."""
COUNTS: Mapping[str, int] = {
    "sequences": 256,
    "inputs": 2048,
    "stop": 16,
    "stop_token_ids": 128,
    "bad_words": 128,
    "logit_bias": 1024,
    "allowed_token_ids": 4096,
    "logprob_token_ids": 128,
}
"""The most entries that a list may have. sequences: prompts times `n`; inputs: texts that are embedded or compared."""
_BOUND_NAMES = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_tokens": "max_tokens",
    **dict.fromkeys(("input", "documents", "text_1", "text_2", "data_1", "data_2", "queries", "items"), "inputs"),
}
_BOUNDED = frozenset((*_BOUND_NAMES, *BOUNDS, *COUNTS))
# Fields with schemas and texts, in which engines search no media.
_WITHOUT_MEDIA = split_names(
    """
    tools tool_choice functions function_call response_format structured_outputs structural_tag guided_json
    guided_choice text metadata client_metadata logit_bias chat_template_kwargs stop bad_words stop_token_ids
    allowed_token_ids
    """
)
_MEDIA = split_names("image_url audio_url video_url file_url")
_EMBEDDED = split_names("image_embeds audio_embeds video_embeds prompt_embeds image_pil")
_NAMED_MEDIA = _MEDIA | _EMBEDDED | {"input_audio"}
_MEDIA_KEYS = _MEDIA | _EMBEDDED | {"uuid"}
_CONTAINERS = (dict, list)
_DATA_URL = re.compile(r"data:[A-Za-z0-9.+/-]*(?:;[A-Za-z0-9._+=-]+)*;base64,")
# No user, no backslash, no space: two programs could read two different hosts from such a URL.
_WEB_URL = re.compile(
    r"(https?)://([A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])?)(?::([0-9]{1,5}))?(?:/[!-\[\]-~]*)?"
)
_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
# The last label of a name begins with a letter, and no address does.
_DOMAIN = re.compile(rf"(?:{_LABEL}\.)+[a-z](?:[a-z0-9-]{{0,61}}[a-z0-9])?(?::[0-9]{{1,5}})?")
_FIELD = re.compile(r"(?:chat_template_kwargs\.)?[A-Za-z_][A-Za-z0-9_]{0,63}")


class ErrorAnswer(Exception):
    """A request is answered with an error. code: the error's name, that of OpenAI's API where there is one; param: the
    wrong field, if one is wrong; headers: of the answer, with `_` for `-`.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None, **headers: str) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.param, self.headers = status, code, message, param, headers


@dataclass(frozen=True)
class BodyRules:
    """The rules of one model. fields: allowed in addition to the lists; media: hosts from which media may be fetched,
    with a port if it is not the default; most: bounds that replace those of BOUNDS and COUNTS.
    """

    fields: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    most: Mapping[str, int] = field(default_factory=dict)

    def bound(self, name: str) -> int:
        """Return the upper bound of a name in BOUNDS or COUNTS."""
        return self.most.get(name, BOUNDS[name][1] if name in BOUNDS else COUNTS.get(name, 0))


def parse_rules(value: Any, path: str) -> BodyRules:
    """Parse the rules of one model. Raises WrongSettings."""
    values = table(value, path, (), ["fields", "media", "most"])
    bounds = [*BOUNDS, *COUNTS]
    most = table(values.get("most", {}), f"{path}.most", (), bounds)
    return BodyRules(
        frozenset(_matching_texts(values, path, "fields", _FIELD)),
        frozenset(_matching_texts(values, path, "media", _DOMAIN)),
        {name: number(most, f"{path}.most", name, _TOKENS) for name in most},
    )


def _matching_texts(values: Mapping[str, Any], path: str, name: str, regex: re.Pattern[str]) -> list[str]:
    texts = values.get(name, [])
    if not isinstance(texts, list):
        raise WrongSettings(f"{path}.{name}: a list is expected")
    if wrong := [each for each in texts if not (isinstance(each, str) and regex.fullmatch(each))]:
        raise WrongSettings(f"{path}.{name}: {wrong[0]!r} does not match {regex.pattern}")
    return texts


def check(body: Mapping[str, Any], route: str, rules: BodyRules) -> None:
    """Check the fields of a body. One that is null counts as absent, as in vLLM. Raises ErrorAnswer."""
    set_fields = {name: value for name, value in body.items() if value is not None}
    for name, value in set_fields.items():
        is_default = name in _SAME_AS_NONE and _SAME_AS_NONE[name] == value
        if not (is_default or name in FIELDS[route] or name in rules.fields):
            raise _unknown_field(name, route)
        if name in _BOUNDED and (
            route != RESPONSES or name != "input"
        ):  # there `input` is a conversation, not a list of inputs
            _check_bound(name, value, rules)
        if type(value) in _CONTAINERS and name not in _WITHOUT_MEDIA:
            _check_media(value, rules, route)
    _check_template(set_fields.get("chat_template_kwargs"), rules, route)
    _check_sequences(set_fields, route, rules)
    # With `echo`, vLLM computes the logprobs of the prompt: always for a chat, and for a completion with `logprobs`.
    if set_fields.get("echo") and (route == CHAT or "logprobs" in set_fields) and "prompt_logprobs" not in rules.fields:
        why = f"`echo` takes logprobs of the prompt here: {RESERVED['prompt_logprobs']}"
        raise _unsupported_value("echo", f"{why}. {_how_to_allow('prompt_logprobs')}")


def _unknown_field(name: str, route: str, qualified_name: str = "") -> ErrorAnswer:
    shown = (qualified_name or name)[:80]
    why = RESERVED.get(name, f"it is not on the list of {route}")
    return ErrorAnswer(
        400, "unknown_parameter", f"The field `{shown}` is refused: {why}. {_how_to_allow(shown)}", shown
    )


def _unsupported_value(name: str, message: str, code: str = "unsupported_value") -> ErrorAnswer:
    return ErrorAnswer(400, code, message, name)


def _how_to_allow(name: str) -> str:
    return f"The operator of this endpoint can allow it for this model: `body.fields: [{name}]`."


def _check_bound(name: str, value: Any, rules: BodyRules) -> None:
    bound_name = _BOUND_NAMES.get(name, name)
    if bound_name in COUNTS:
        amount: Any = len(value) if isinstance(value, list | dict) and not _is_tokens(name, value) else 1
        least = 0
    elif bound_name in BOUNDS:
        amount, least = value, BOUNDS[bound_name][0]
        if isinstance(value, bool) and name == "logprobs":
            return
        # Engines also accept a number as a text.
        if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
            raise _unsupported_value(name, f"`{name}` has to be a whole number.")
    else:
        return
    if not least <= amount <= rules.bound(bound_name):
        span = f"`{name}` may be {least} to {rules.bound(bound_name)} here."
        raise _unsupported_value(name, f"{span} The operator of this endpoint can change it: `body.most.{bound_name}`.")


def _is_tokens(name: str, value: Any) -> bool:
    """Tell whether the value is one text as a list of token numbers, not a list of texts."""
    return name in ("input", "prompt") and bool(value) and isinstance(value, list) and isinstance(value[0], int)


def _check_sequences(set_fields: Mapping[str, Any], route: str, rules: BodyRules) -> None:
    if route not in (CHAT, COMPLETION):
        return
    prompt = set_fields.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not _is_tokens("prompt", prompt) else 1
    answers = max(int(set_fields.get("n", 1)), int(set_fields.get("best_of", 1)))
    if prompts * answers > rules.bound("sequences"):
        name = "prompt" if prompts > answers else "n"
        raise _unsupported_value(
            name,
            f"{prompts} prompts times {answers} answers are more than {rules.bound('sequences')} in one request. "
            "The operator of this endpoint can change it: `body.most.sequences`.",
        )


def _check_template(value: Any, rules: BodyRules, route: str) -> None:
    if value is None or "chat_template_kwargs" in rules.fields:
        return
    if not isinstance(value, dict):
        raise _unsupported_value("chat_template_kwargs", "`chat_template_kwargs` has to be an object.")
    for name, each in value.items():
        qualified_name = f"chat_template_kwargs.{name}"
        if name not in TEMPLATE_FIELDS and qualified_name not in rules.fields:
            raise _unknown_field(name, route, qualified_name)
        large = isinstance(each, list | dict) or (isinstance(each, str) and len(each) > _MAX_TEMPLATE_TEXT)
        if large and qualified_name not in rules.fields:
            why = (
                f"`{qualified_name}` has to be a number, true, false or a text of up to {_MAX_TEMPLATE_TEXT} characters"
            )
            raise _unsupported_value(qualified_name, f"{why}. {_how_to_allow(qualified_name)}")


def _check_media(value: Any, rules: BodyRules, route: str) -> None:
    """Refuse media that the engine would fetch or load, at any depth of the body. Raises ErrorAnswer."""
    for part in _objects(value):
        kind = part.get("type")
        if part.keys().isdisjoint(_MEDIA_KEYS) and not (isinstance(kind, str) and kind in _EMBEDDED):
            continue  # the usual case
        for key in _EMBEDDED:
            if (part.get(key) is not None or kind == key) and key not in rules.fields:
                raise _unknown_field(key, route)
        # With a uuid, even a part without media refers to media of an earlier request.
        if part.get("uuid") is not None and not _NAMED_MEDIA.isdisjoint(part) and "uuid" not in rules.fields:
            raise _unknown_field("uuid", route)
        for key in _MEDIA & part.keys():
            url = part[key]
            _check_url(key, url.get("url") if isinstance(url, dict) else url, rules)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects in a body. This does not recurse, because the client decides how deep the body is nested."""
    remaining = [value]
    while remaining:
        current = remaining.pop()
        if type(current) is dict:
            yield current
            remaining += [each for each in current.values() if type(each) in _CONTAINERS]
        elif type(current) is list:
            remaining += [each for each in current if type(each) in _CONTAINERS]


def _check_url(name: str, url: Any, rules: BodyRules) -> None:
    if url is None or (isinstance(url, str) and _DATA_URL.match(url[:300])):
        return
    match = _WEB_URL.fullmatch(url) if isinstance(url, str) and len(url) <= 8192 else None
    if match is None:
        message = f"`{name}` has to be data:TYPE;base64,… or an http(s) URL of a host that is allowed."
        raise _unsupported_value(name, message, "invalid_media_url")
    scheme, host, port = match[1], match[2].lower(), match[3]
    is_default = port is None or port == ("443" if scheme == "https" else "80")
    if (host if is_default else f"{host}:{port}") not in rules.media:
        raise _unsupported_value(
            name,
            f"The engine fetches nothing from the host of `{name}`: send the media in the request, as "
            "data:TYPE;base64,…. The operator of this endpoint can allow a host for this model: `body.media`.",
            "invalid_media_url",
        )
