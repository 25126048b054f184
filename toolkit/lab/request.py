"""What clients may ask `toolkit lab serve`: bodies in the dialect of OpenAI and vLLM, validated, turned into a `Job`.

Fields as in vLLM 0.32 (vllm/entrypoints/openai/*/protocol.py). A field that we do not know is ignored, as there; one
that would change what is drawn and that the reference loop does not have is refused: the answer would not be what was
asked for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from toolkit.lab.answer import Job
from toolkit.lab.reference import Sampling
from toolkit.lab.tokenizer import Tokenizer

MOST_LOGPROBS = 20  # vLLM's --max-logprobs by default
COMPLETION_TOKENS = 16  # max_tokens of /v1/completions when the request names none

# The values that change nothing, for the fields that else would.
_NEUTRAL: dict[str, Sequence[Any]] = {
    "n": (1,),
    "best_of": (1,),
    "use_beam_search": (False,),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "allowed_token_ids": ([],),
    "bad_words": ([],),
    "min_tokens": (0,),
    "response_format": ({"type": "text"},),
    "structured_outputs": ({},),
    "tools": ([],),
    "thinking_token_budget": (),
    "echo": (False,),
    "suffix": ("",),
    "prompt_embeds": (),
    "truncate_prompt_tokens": (),
    "chat_template": (),
    "chat_template_kwargs": ({},),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
}
_REFUSAL = (
    "the reference loop draws one answer from the model's distribution, shaped by temperature, top_k and top_p alone; "
    "leave this field out."
)

Id = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Logprobs = Annotated[int, Field(ge=0, le=MOST_LOGPROBS)]


class BadRequestError(Exception):
    """The request cannot be served; the message says which field and why. `status` is HTTP's."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status


class _Body(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True, strict=True, allow_inf_nan=False)


class StreamOptions(_Body):
    include_usage: bool = False


class Ask(_Body):
    """What both routes take."""

    model: str | None = None
    max_tokens: Count | None = None
    temperature: float = Field(1.0, ge=0)
    top_k: int = Field(-1, ge=-1)
    top_p: float = Field(1.0, gt=0, le=1)
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    stop: list[str] = []
    stop_token_ids: list[Id] = []
    ignore_eos: bool = False
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    prompt_logprobs: Logprobs | None = None

    @field_validator("stop", mode="before")
    @classmethod
    def _strings(cls, stop: Any) -> Any:
        strings = [stop] if isinstance(stop, str) else stop
        if not isinstance(strings, list) or not all(isinstance(one, str) and one for one in strings):
            raise ValueError("give a string, or a list of strings, none of them empty")
        return strings

    @property
    def top(self) -> int | None:
        """Log probabilities beside each token of the answer; None when none are asked for."""
        raise NotImplementedError

    @property
    def most_tokens(self) -> int | None:
        """max_tokens; None leaves it to the model's length."""
        raise NotImplementedError

    def prompt_ids(self, tokenizer: Tokenizer) -> list[int]:
        raise NotImplementedError

    def job(self, tokenizer: Tokenizer, size: int, max_model_len: int) -> Job:
        """The work, for a vocabulary of `size` tokens and at most `max_model_len` of prompt and answer together.

        Raises BadRequestError.
        """
        prompt = tuple(self.prompt_ids(tokenizer))
        if not prompt:
            raise BadRequestError("the prompt is empty.")
        if beyond := [token for token in prompt if token >= size]:
            raise BadRequestError(f"prompt: token id {beyond[0]} lies outside the vocabulary of {size}.")
        room = max_model_len - len(prompt)
        most = room if self.most_tokens is None else self.most_tokens
        if room < max(most, 1):
            raise BadRequestError(
                f"the prompt has {len(prompt)} tokens and the answer may have {max(most, 1)}, "
                f"but this server's max_model_len is {max_model_len}."
            )
        return Job(
            prompt=prompt,
            sampling=Sampling(
                self.temperature, self.top_k if self.top_k > 0 else None, self.top_p if self.top_p < 1 else None
            ),
            max_tokens=most,
            seed=self.seed,
            stops=tuple(self.stop),
            stop_ids=frozenset(self.stop_token_ids),
            ignore_eos=self.ignore_eos,
            top=self.top,
            prompt_top=self.prompt_logprobs,
        )


class CompletionAsk(Ask):
    """POST /v1/completions: `prompt` is a text or its token ids."""

    prompt: str | list[int]
    max_tokens: Count = COMPLETION_TOKENS
    logprobs: Logprobs | None = None

    @field_validator("prompt", mode="before")
    @classmethod
    def _one_prompt(cls, prompt: Any) -> Any:
        ids = prompt if isinstance(prompt, list) else [None]
        if not isinstance(prompt, str) and not all(type(one) is int and one >= 0 for one in ids):
            raise ValueError("give one prompt, as a text or as a list of token ids")
        return prompt

    @model_validator(mode="after")
    def _scores_are_whole(self) -> "CompletionAsk":
        if self.stream and self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs are not available when stream is true")
        return self

    @property
    def top(self) -> int | None:
        return self.logprobs

    @property
    def most_tokens(self) -> int | None:
        return self.max_tokens

    def prompt_ids(self, tokenizer: Tokenizer) -> list[int]:
        return tokenizer.encode(self.prompt) if isinstance(self.prompt, str) else self.prompt


class Message(_Body):
    """One turn; the text parts of a `content` that is a list are joined by line breaks."""

    role: str
    content: str

    @field_validator("content", mode="before")
    @classmethod
    def _text(cls, content: Any) -> Any:
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
        if len(texts) != len(parts) or not all(isinstance(text, str) for text in texts):
            raise ValueError("give a text, or a list of text parts")
        return "\n".join(map(str, texts))


class ChatAsk(Ask):
    """POST /v1/chat/completions."""

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Logprobs = 0

    @model_validator(mode="after")
    def _consistent(self) -> "ChatAsk":
        if self.top_logprobs and not self.logprobs:
            raise ValueError("top_logprobs needs logprobs to be true")
        if self.prompt_logprobs is not None:
            raise ValueError("prompt_logprobs are available on /v1/completions, with the prompt as token ids")
        return self

    @property
    def top(self) -> int | None:
        return self.top_logprobs if self.logprobs else None

    @property
    def most_tokens(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens

    def prompt_ids(self, tokenizer: Tokenizer) -> list[int]:
        try:
            return tokenizer.chat([message.model_dump() for message in self.messages])
        except ValueError as error:  # the chat template's own refusals: an unknown role, an order it does not know
            raise BadRequestError(f"messages: {error}.") from None


def read_chat(body: bytes) -> ChatAsk:
    """The request that `body` holds. Raises BadRequestError."""
    return _read(ChatAsk, body)


def read_completion(body: bytes) -> CompletionAsk:
    """The request that `body` holds. Raises BadRequestError."""
    return _read(CompletionAsk, body)


_Kind = TypeVar("_Kind", bound=Ask)


def _read(kind: type[_Kind], body: bytes) -> _Kind:
    try:
        values = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRequestError(f"the body is not JSON: {error}.") from None
    if not isinstance(values, Mapping):
        raise BadRequestError("the body is not a JSON object.")
    given = {name: value for name, value in values.items() if value is not None}
    for name, neutral in _NEUTRAL.items():
        if name in given and given[name] not in neutral:
            raise BadRequestError(f"{name}: {_REFUSAL}")
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise BadRequestError(_first(error)) from None


def _first(error: ValidationError) -> str:
    one = error.errors(include_url=False)[0]
    where = ".".join(str(part) for part in one["loc"])
    what = str(one["msg"]).removeprefix("Value error, ")
    return f"{where}: {what}." if where else f"{what}."
