"""Makes a tiny model of random weights, with its tokenizer: `python tiny_model.py FOLDER`, by vLLM's Python."""

import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = 512
SENTENCES = ["One two three four five six seven eight nine ten.", "The gateway lets a stream end before it stops."] * 20
TEMPLATE = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"


def make(folder: str) -> None:
    made = Tokenizer(models.BPE(unk_token=None))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>", "<pad>"]
    made.train_from_iterator(
        SENTENCES, trainers.BpeTrainer(vocab_size=WORDS, special_tokens=special, initial_alphabet=letters)
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", model_max_length=2048
    )
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 32}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    tokens = {"vocab_size": WORDS, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    # Not in bfloat16: for that vLLM takes AMX, which some hypervisors show and cannot run.
    config = LlamaConfig(**sizes, **heads, **tokens, max_position_embeddings=2048, dtype="float16")
    LlamaForCausalLM(config).to(torch.float16).save_pretrained(folder)


if __name__ == "__main__":
    make(sys.argv[1])
