"""Which engine a recipe starts: by its image, by its command, by a variable that has the image."""

from tests.rows import each_row
from winhost.recipes.lint_recipe import lint_recipe, read_recipe
from winhost.recipes.recipe_case import RecipeTarget
from winhost.recipes.recipe_text import SourceFile

STARTS = {
    "docker run --gpus all nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8": ["nim"],
    "export IMG_NAME=nvcr.io/nim/meta/llama-3.1-8b-instruct:1.8\ndocker run --gpus all $IMG_NAME": ["nim"],
    "IMG=ubuntu:24.04\ndocker run --gpus all $IMG": [],
    "docker run --gpus all nvcr.io/nim/nvidia/parakeet-ctc-1.1b-asr:1": [],  # speech, with ports of its own
    "docker run ghcr.io/huggingface/text-embeddings-inference:cpu-1.9 --model-id org/model": ["tei"],
    "docker run nvcr.io/nvidia/tensorrt-llm/release:1.2.0 nvidia-smi": [],
    "trtllm-llmapi-launch trtllm-serve serve org/model --tp_size 2": ["tensorrt-llm"],
    "trtllm-serve org/model": ["tensorrt-llm"],
    "trtllm-serve disaggregated -c router.yaml": [],
    "trtllm-serve serve --help": [],
    "lmdeploy serve api_server org/model --server-port 8000": ["lmdeploy"],
    "lmdeploy serve api_server -h": [],
    "lmdeploy serve proxy --server-port 8000": [],
    "servingEngineSpec:\n  modelSpec:\n  - name: a\n    modelURL: org/model\n  - name: b\n    modelURL: org/other\n": [
        "vllm"
    ]
    * 2,
}


@each_row("text", STARTS)
def test_the_engine_that_is_started(text: str) -> None:
    recipe = read_recipe(SourceFile.decode(text.encode()))
    assert [engine.kind for engine in (recipe.engines if recipe else ())] == STARTS[text]


def test_a_secret_of_the_chart_is_named_as_its_place_takes_it() -> None:
    text = """servingEngineSpec:
  modelSpec:
  - name: a
    modelURL: org/model
    hf_token: hf_abcdefghijklmnop
    env: [{name: NGC_API_KEY, value: nvapi-abcdefghijklmnop}]
"""
    found = lint_recipe(text.encode(), RecipeTarget()).findings
    told = {each.line: each.remedy.do if each.remedy else "" for each in found if each.code == "serve.secret-in-recipe"}
    assert told.keys() == {5, 6}
    assert "secretName" in told[5]
    assert "valueFrom.secretKeyRef" in told[6]


def test_values_of_the_chart_are_options_of_vllm() -> None:
    text = """servingEngineSpec:
  modelSpec:
  - name: a
    repository: vllm/vllm-openai
    tag: v0.30.0
    modelURL: org/model
    requestGPU: 2
    hf_token: {secretName: hub, secretKey: token}
    vllmConfig: {tensorParallelSize: 2, maxModelLen: 4096, enablePrefixCaching: false, extraArgs: ["--enforce-eager"]}
"""
    recipe = read_recipe(SourceFile.decode(text.encode()))
    assert recipe is not None
    (engine,) = recipe.engines
    options = {each.name: each.value for each in engine.options}
    assert options == {"--tensor-parallel-size": "2", "--max-model-len": "4096", "--enforce-eager": None}
    assert {each.name: each.value for each in engine.container} == {
        "image": "vllm/vllm-openai:v0.30.0",
        "--gpus": "2",
        "--shm-size": "20Gi",
    }
    assert not engine.variables  # its token is in a Secret


def test_a_null_in_values_of_the_chart_is_no_value() -> None:
    text = """servingEngineSpec:
  vllmApiKey: null
  modelSpec:
  - name: a
    repository: vllm/vllm-openai
    tag: ~
    modelURL: org/model
    requestGPU:
    hf_token: null
    shmSize: null
    vllmConfig: {tensorParallelSize: null, maxModelLen: null}
"""
    recipe = read_recipe(SourceFile.decode(text.encode()))
    assert recipe is not None
    (engine,) = recipe.engines
    assert not engine.options
    assert not engine.variables
    assert {each.name: each.value for each in engine.container} == {"image": "vllm/vllm-openai"}
