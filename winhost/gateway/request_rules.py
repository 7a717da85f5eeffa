"""The rules for the body of a request: fields by route, bounds, and hosts of media.

vLLM accepts any field, and acts on many that are meant for its operator. So these lists name the fields that clients
may send: those of vLLM's request models (0.11.0, 0.17.0, 0.24.0, 0.32.0 and 0.33.0 were read) and of the openai client,
without RESERVED. A model's settings may allow more.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .settings_values import WrongSettings, number, table

CHAT, COMPLETION, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
EMBEDDINGS, RERANK, SCORE = "/v1/embeddings", "/v1/rerank", "/v1/score"


def names_in(text: str) -> frozenset[str]:
    return frozenset(text.split())


_EVERY = names_in("model user truncate_prompt_tokens truncation_side")
_GENERATING = _EVERY | names_in(
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
_TEMPLATED = names_in("messages add_generation_prompt continue_final_message chat_template_kwargs")
_POOLING = _EVERY | names_in("add_special_tokens use_activation activation normalize instruction")
_SCORING = _POOLING | names_in("chat_template_kwargs max_tokens_per_query max_tokens_per_doc documents")

FIELDS: Mapping[str, frozenset[str]] = {
    CHAT: _GENERATING
    | _TEMPLATED
    | names_in(
        """
        max_completion_tokens tools tool_choice parallel_tool_calls functions function_call documents modalities audio
        prediction web_search_options return_prompt_text
        """
    ),
    COMPLETION: _GENERATING | names_in("prompt suffix"),
    RESPONSES: _GENERATING
    | names_in(
        """
        input instructions max_output_tokens max_tool_calls tools tool_choice parallel_tool_calls text include prompt
        truncation chat_template_kwargs context_management client_metadata
        """
    ),
    EMBEDDINGS: _POOLING
    | _TEMPLATED
    | names_in("input dimensions encoding_format embed_dtype endianness input_type truncate"),
    RERANK: _SCORING | names_in("query top_n return_documents max_chunks_per_doc"),
    SCORE: _SCORING | names_in("text_1 text_2 data_1 data_2 queries items"),
}

_OPERATOR = "it is for whoever operates the engine"
_TRANSFER = "it names other engines, which this one would connect to"
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
"""Fields of vLLM that are on no list, and why."""

_SAME_AS_NONE: Mapping[str, object] = {"priority": 0, "use_beam_search": False, "background": False}

# vLLM passes all fields of a template to the tokenizer, which reads `padding`, `max_length` and others as settings.
TEMPLATE_FIELDS = names_in(
    """
    enable_thinking thinking thinking_budget thinking_mode reasoning_effort reasoning preserve_thinking clear_thinking
    truncate_history_thinking drop_thinking add_vision_id date_string model_identity tools_in_user_message
    """
)
_LONGEST_TEMPLATE_VALUE = 1000

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
_BOUND_OF = {
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "min_tokens": "max_tokens",
    **dict.fromkeys(("input", "documents", "text_1", "text_2", "data_1", "data_2", "queries", "items"), "inputs"),
}
_BOUNDED = frozenset((*_BOUND_OF, *BOUNDS, *COUNTS))
# Schemas and texts in which no engine looks for media.
_NO_MEDIA = names_in(
    """
    tools tool_choice functions function_call response_format structured_outputs structural_tag guided_json
    guided_choice text metadata client_metadata logit_bias chat_template_kwargs stop bad_words stop_token_ids
    allowed_token_ids
    """
)
_MEDIA = names_in("image_url audio_url video_url file_url")
_EMBEDDED = names_in("image_embeds audio_embeds video_embeds prompt_embeds image_pil")
_NAMED = _MEDIA | _EMBEDDED | {"input_audio"}
_WATCHED = _MEDIA | _EMBEDDED | {"uuid"}
_HOLD_MORE = (dict, list)
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
    """A request is answered with an error. code: the error's name, by OpenAI where that has one; param: the field that
    is wrong, if it is one; headers: of the answer, with `_` for `-`.
    """

    def __init__(self, status: int, code: str, message: str, param: str | None = None, **headers: str) -> None:
        super().__init__(code)
        self.status, self.code, self.message, self.param, self.headers = status, code, message, param, headers


@dataclass(frozen=True)
class BodyRules:
    """The rules of one model. fields: allowed besides the lists; media: hosts that media may be fetched from, with a
    port if it is not the usual one; most: bounds that replace those of BOUNDS and COUNTS.
    """

    fields: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    most: Mapping[str, int] = field(default_factory=dict)

    def bound(self, name: str) -> int:
        """The upper bound of a name in BOUNDS or COUNTS."""
        return self.most.get(name, BOUNDS[name][1] if name in BOUNDS else COUNTS.get(name, 0))


def parse_rules(value: Any, where: str) -> BodyRules:
    """Parse the rules of one model. Raises WrongSettings."""
    given = table(value, where, (), ["fields", "media", "most"])
    bounds = [*BOUNDS, *COUNTS]
    most = table(given.get("most", {}), f"{where}.most", (), bounds)
    return BodyRules(
        frozenset(_words(given, where, "fields", _FIELD)),
        frozenset(_words(given, where, "media", _DOMAIN)),
        {name: number(most, f"{where}.most", name, _TOKENS) for name in most},
    )


def _words(given: Mapping[str, Any], where: str, name: str, form: re.Pattern[str]) -> list[str]:
    words = given.get(name, [])
    if not isinstance(words, list):
        raise WrongSettings(f"{where}.{name}: a list is expected")
    if wrong := [each for each in words if not (isinstance(each, str) and form.fullmatch(each))]:
        raise WrongSettings(f"{where}.{name}: {wrong[0]!r} does not match {form.pattern}")
    return words


def check(body: Mapping[str, Any], route: str, rules: BodyRules) -> None:
    """Check the fields of a body. One that is null counts as absent, as in vLLM. Raises ErrorAnswer."""
    given = {name: value for name, value in body.items() if value is not None}
    for name, value in given.items():
        usual = name in _SAME_AS_NONE and _SAME_AS_NONE[name] == value
        if not (usual or name in FIELDS[route] or name in rules.fields):
            raise _unknown(name, route)
        if name in _BOUNDED and (route != RESPONSES or name != "input"):  # there it is a conversation, and one input
            _check_bound(name, value, rules)
        if type(value) in _HOLD_MORE and name not in _NO_MEDIA:
            _check_media(value, rules, route)
    _check_template(given.get("chat_template_kwargs"), rules, route)
    _check_sequences(given, route, rules)
    # vLLM then computes the logprobs of the prompt: for a chat always, for a completion if it asks for logprobs.
    if given.get("echo") and (route == CHAT or "logprobs" in given) and "prompt_logprobs" not in rules.fields:
        why = f"`echo` takes logprobs of the prompt here: {RESERVED['prompt_logprobs']}"
        raise _unsupported("echo", f"{why}. {_allows('prompt_logprobs')}")


def _unknown(name: str, route: str, whole: str = "") -> ErrorAnswer:
    shown = (whole or name)[:80]
    why = RESERVED.get(name, f"it is not on the list of {route}")
    return ErrorAnswer(400, "unknown_parameter", f"The field `{shown}` is refused: {why}. {_allows(shown)}", shown)


def _unsupported(name: str, message: str, code: str = "unsupported_value") -> ErrorAnswer:
    return ErrorAnswer(400, code, message, name)


def _allows(name: str) -> str:
    return f"The operator of this endpoint can allow it for this model: `body.fields: [{name}]`."


def _check_bound(name: str, value: Any, rules: BodyRules) -> None:
    by = _BOUND_OF.get(name, name)
    if by in COUNTS:
        found: Any = len(value) if isinstance(value, list | dict) and not _is_tokens(name, value) else 1
        least = 0
    elif by in BOUNDS:
        found, least = value, BOUNDS[by][0]
        if isinstance(value, bool) and name == "logprobs":
            return
        # Engines also take a number that is written as a text.
        if isinstance(value, bool) or not (isinstance(value, int) or (isinstance(value, float) and value.is_integer())):
            raise _unsupported(name, f"`{name}` has to be a whole number.")
    else:
        return
    if not least <= found <= rules.bound(by):
        what = f"`{name}` may be {least} to {rules.bound(by)} here."
        raise _unsupported(name, f"{what} The operator of this endpoint can change it: `body.most.{by}`.")


def _is_tokens(name: str, value: Any) -> bool:
    """Tell whether this is one text as a list of token numbers, and not a list of texts."""
    return name in ("input", "prompt") and bool(value) and isinstance(value, list) and isinstance(value[0], int)


def _check_sequences(given: Mapping[str, Any], route: str, rules: BodyRules) -> None:
    if route not in (CHAT, COMPLETION):
        return
    prompt = given.get("prompt")
    prompts = len(prompt) if isinstance(prompt, list) and not _is_tokens("prompt", prompt) else 1
    each = max(int(given.get("n", 1)), int(given.get("best_of", 1)))
    if prompts * each > rules.bound("sequences"):
        name = "prompt" if prompts > each else "n"
        raise _unsupported(
            name,
            f"{prompts} prompts times {each} answers are more than {rules.bound('sequences')} in one request. "
            "The operator of this endpoint can change it: `body.most.sequences`.",
        )


def _check_template(value: Any, rules: BodyRules, route: str) -> None:
    if value is None or "chat_template_kwargs" in rules.fields:
        return
    if not isinstance(value, dict):
        raise _unsupported("chat_template_kwargs", "`chat_template_kwargs` has to be an object.")
    for name, each in value.items():
        whole = f"chat_template_kwargs.{name}"
        if name not in TEMPLATE_FIELDS and whole not in rules.fields:
            raise _unknown(name, route, whole)
        large = isinstance(each, list | dict) or (isinstance(each, str) and len(each) > _LONGEST_TEMPLATE_VALUE)
        if large and whole not in rules.fields:
            why = f"`{whole}` has to be a number, true, false or a text of up to {_LONGEST_TEMPLATE_VALUE} characters"
            raise _unsupported(whole, f"{why}. {_allows(whole)}")


def _check_media(value: Any, rules: BodyRules, route: str) -> None:
    """Refuse media that the engine would fetch or load, at any depth of the body."""
    for part in _objects(value):
        kind = part.get("type")
        if part.keys().isdisjoint(_WATCHED) and not (isinstance(kind, str) and kind in _EMBEDDED):
            continue  # nearly all of them
        for key in _EMBEDDED:
            if (part.get(key) is not None or kind == key) and key not in rules.fields:
                raise _unknown(key, route)
        # By its uuid, even a part without media refers to media that came before.
        if part.get("uuid") is not None and not _NAMED.isdisjoint(part) and "uuid" not in rules.fields:
            raise _unknown("uuid", route)
        for key in _MEDIA & part.keys():
            url = part[key]
            _check_url(key, url.get("url") if isinstance(url, dict) else url, rules)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in a body. This does not recurse, because the client decides how deep a body is."""
    ahead = [value]
    while ahead:
        now = ahead.pop()
        if type(now) is dict:
            yield now
            ahead += [each for each in now.values() if type(each) in _HOLD_MORE]
        elif type(now) is list:
            ahead += [each for each in now if type(each) in _HOLD_MORE]


def _check_url(name: str, url: Any, rules: BodyRules) -> None:
    if url is None or (isinstance(url, str) and _DATA_URL.match(url[:300])):
        return
    found = _WEB_URL.fullmatch(url) if isinstance(url, str) and len(url) <= 8192 else None
    if found is None:
        message = f"`{name}` has to be data:TYPE;base64,… or an http(s) URL of a host that is allowed."
        raise _unsupported(name, message, "invalid_media_url")
    scheme, host, port = found[1], found[2].lower(), found[3]
    usual = port is None or port == ("443" if scheme == "https" else "80")
    if (host if usual else f"{host}:{port}") not in rules.media:
        raise _unsupported(
            name,
            f"The engine fetches nothing from the host of `{name}`: send the media in the request, as "
            "data:TYPE;base64,…. The operator of this endpoint can allow a host for this model: `body.media`.",
            "invalid_media_url",
        )
