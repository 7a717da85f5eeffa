"""What a list of unquantized modules means."""

from dataclasses import replace
from functools import partial

import pytest

from winhost.model.workload import Model, Quantization, Shape
from winhost.sizing import quantized
from winhost.sizing.quantized import QuantizedWeights, quantized_weights

MODEL = Model(
    name="m",
    id="m",
    parameters=8_000_000_000,
    quantization=Quantization.FP8,
    shape=Shape(layers=12, kv_heads=8, head_dim=128, hidden=4096, vocabulary=128_256, heads=32),
)


def weights_with_list(*unquantized: str, quantization: Quantization = Quantization.FP8) -> QuantizedWeights:
    model = replace(MODEL, quantization=quantization, unquantized=unquantized)
    assert model.embedding
    assert model.parameters
    return quantized_weights(model, quantization, model.embedding, model.parameters)


def test_a_star_is_anything_wherever_it_stands_in_a_part() -> None:
    assert weights_with_list("model.layers.1*") == weights_with_list("layers.1", "layers.10", "layers.11")
    assert (
        weights_with_list("*self_attn*")
        == weights_with_list("self_attn")
        == weights_with_list("model.layers.*.self_attn.*")
    )
    assert weights_with_list("*.mlp.*_proj") == weights_with_list("mlp")


def test_a_pattern_that_may_mean_routers_alone_is_unknown() -> None:
    for pattern in ("*.mlp.gate*", "gate*"):
        assert "of unknown size" in weights_with_list(pattern).how


def test_a_list_counts_in_every_format() -> None:
    for each in Quantization:
        assert weights_with_list("self_attn", quantization=each).least > weights_with_list(quantization=each).least, (
            each
        )


def test_a_long_list_is_read_once_however_often_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    matches = quantized._matches

    def counted(pattern: str, name: str) -> bool:
        read.append(pattern)
        return matches(pattern, name)

    monkeypatch.setattr(quantized, "_matches", counted)
    ask = partial(weights_with_list, *(f"model.layers.{number}.self_attn.k_proj" for number in range(12)))
    ask()
    once = len(read)
    assert once > 0
    assert [ask(quantization=each).how for each in Quantization]
    assert len(read) == once
