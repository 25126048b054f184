"""A random Llama of six layers on disk, with a tokenizer of twelve words."""

from pathlib import Path

WORDS = ["<end>", "<user>", "<model>", "a", "cat", "sat", "on", "mats", "and", "what", "?", "!"]
TEMPLATE = "{% for m in messages %}<user> {{ m['content'] }} {% endfor %}<model>"
LAYERS = 6


def save(folder: Path) -> Path:
    import torch
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=12, hidden_size=16, intermediate_size=16, num_hidden_layers=LAYERS, num_attention_heads=2,
        max_position_embeddings=64, eos_token_id=0, bos_token_id=None, initializer_range=0.5,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    raw = Tokenizer(WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="<end>"))
    raw.pre_tokenizer = WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<end>", unk_token="<end>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder
