"""Prints the fields of vLLM's request models by the route that they are of, as JSON: run by vLLM's Python."""

import json
import sys

from pydantic import BaseModel
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.pooling.embed import protocol as embed
from vllm.entrypoints.pooling.scoring import protocol as scoring
from vllm.renderers.chat_utils import MM_PARSER_MAP

ROUTES = {"Embedding": "/v1/embeddings", "Score": "/v1/score", "Rerank": "/v1/rerank"}


def models() -> dict[str, list[type[BaseModel]]]:
    found: dict[str, list[type[BaseModel]]] = {
        "/v1/chat/completions": [ChatCompletionRequest],
        "/v1/completions": [CompletionRequest],
        "/v1/responses": [ResponsesRequest],
    }
    for name, each in (*vars(embed).items(), *vars(scoring).items()):
        if isinstance(each, type) and issubclass(each, BaseModel) and name.endswith("Request"):
            for begins, route in ROUTES.items():
                if name.startswith(begins):
                    found.setdefault(route, []).append(each)
    return found


if __name__ == "__main__":
    fields = {route: sorted({name for each in of for name in each.model_fields}) for route, of in models().items()}
    sys.stdout.write(json.dumps({"fields": fields, "parts": sorted(MM_PARSER_MAP)}))
