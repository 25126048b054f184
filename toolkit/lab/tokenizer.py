"""Text to token ids and back: what the lab's server needs of a tokenizer, and the tokenizer of a model's folder."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from toolkit.errors import InputError


class Tokenizer(Protocol):
    """`eos` is the id that ends an answer; it has no text."""

    @property
    def eos(self) -> int: ...

    def encode(self, text: str) -> list[int]: ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`. More ids only add to it, but for U+FFFD at its end, which stands for a half character."""

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """The prompt that asks for the answer to `messages` (`role`, `content`). Raises ValueError for bad ones."""


class FolderTokenizer:
    """The tokenizer in a model's folder, with the chat template that lies there, or none.

    Raises InputError when there is none, or it knows no end of an answer. Imports transformers into this process.
    """

    def __init__(self, folder: Path) -> None:
        try:
            from transformers import AutoTokenizer
        except ImportError as error:
            raise InputError(f"tokenizers are read with transformers: {error}.") from error
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{folder} holds no tokenizer that transformers can load: {error}") from error
        if self._tokenizer.eos_token_id is None:
            raise InputError(f"the tokenizer in {folder} has no token that ends an answer.")
        self.eos = int(self._tokenizer.eos_token_id)

    def encode(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text))

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

    def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        from jinja2 import TemplateError

        if self._tokenizer.chat_template is None:
            raise ValueError("this model has no chat template: use /v1/completions")
        try:
            text = self._tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
        except TemplateError as error:
            raise ValueError(f"the chat template refuses them: {error}") from None
        return list(self._tokenizer.encode(text, add_special_tokens=False))
