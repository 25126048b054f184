"""What every engine is given and what it gives back: the profile, the command, the counts, the adapter.

The models are engine-neutral. An adapter (one file per engine beside this one) translates a `Profile` into a
`Command`, and the engine's own responses and /metrics page into `SpecCounts` and `Counters`.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

Method = Literal["draft_model", "ngram", "lookup", "eagle", "eagle3", "mtp", "medusa", "suffix", "layer_skip"]
NEEDS_DRAFT: frozenset[str] = frozenset({"draft_model", "eagle", "eagle3", "medusa"})
LOOKUPS: frozenset[str] = frozenset({"ngram", "lookup", "suffix"})  # from the text: no draft model, no cache of one
LAYERS_OF = "#layers="
"""Between a model's name and some of its layers: the name of the draft that these are."""
_OWN_WORDS = {
    "ngram": ("lookup_min", "lookup_max"),
    "lookup": ("max_match", "memory_tokens", "corpus", "probe_budget"),
    "layer_skip": ("layers", "layer_cache"),
}
Range = tuple[Annotated[int, Field(ge=1)], Annotated[int, Field(ge=1)], Annotated[int, Field(ge=0)]]


_SECRET_NAME = re.compile(r"(^|_)(KEY|TOKEN|SECRET|PASSWORD|CREDENTIALS?)$", re.IGNORECASE)
_KEY = re.compile(r"[!-~]{12,}")
_VARIABLE = re.compile(r"[A-Z_][A-Z0-9_]*")
_OF_A_LAUNCH = ("speculation", "limits", "server", "container", "environment", "engine_args")
_SECRET_FLAG = re.compile(r"--[a-z_-]*(api[-_]key|token|password)(=|$)")


def is_secret(name: str) -> bool:
    """Whether an environment variable of this name holds a secret: it is passed on, never written down or shown."""
    return bool(_SECRET_NAME.search(name))


def is_variable(name: str) -> bool:
    """Whether `name` may be shown as an environment variable's: capital letters, so that no key that was put in its
    place is."""
    return bool(_VARIABLE.fullmatch(name))


def may_be_key(path: str) -> bool:
    """Whether what was given as a file's path may be the key itself: a long word that does not begin as a path."""
    return bool(_KEY.fullmatch(path)) and not path.startswith(("/", "./", "../", "~"))


class Strict(BaseModel):
    """Unknown keys are refused, values do not change after validation."""

    model_config = ConfigDict(extra="forbid", frozen=True, str_strip_whitespace=True)


class Target(Strict):
    """The model whose answers are wanted."""

    model: str = Field(min_length=1, description="hub name, local folder, or lab/SmolLM2-135M-Instruct")
    revision: str | None = None
    served_name: str | None = Field(None, description="name in the API; the model's own name when absent")
    dtype: str = Field("auto", description="auto, bfloat16, float16 or float32")
    quantization: str | None = None


class Speculation(Strict):
    """How drafts are made, in words no engine owns. Each adapter translates them."""

    method: Method
    num_speculative_tokens: int = Field(ge=1, le=64, description="K: draft tokens per step")
    draft: str | None = Field(None, description="the draft model or head, for methods that have one")
    draft_revision: str | None = None
    lookup_min: int | None = Field(None, ge=1, description="shortest suffix that ngram looks up, tokens")
    lookup_max: int | None = Field(None, ge=1, description="longest suffix that ngram looks up, tokens")
    max_match: int | None = Field(None, ge=1, le=128, description="lookup: suffixes are matched up to this length")
    memory_tokens: int | None = Field(
        None,
        ge=0,
        le=2**29,
        description="lookup: tokens of other requests' output to draft from; 0 keeps requests apart, since how fast an "
        "answer comes tells a user whether another one was given the same",
    )
    corpus: str | None = Field(None, min_length=1, description="lookup: a text file or a folder of them to draft from")
    probe_budget: float | None = Field(
        None, ge=0, le=0.5, description="lookup: share of the time that trying out longer drafts may cost"
    )
    layers: str | None = Field(
        None,
        pattern=r"^[0-9, -]+$",
        max_length=400,
        description="layer_skip: the target's layers that draft, 0-3,28,29",
    )
    layer_cache: Literal["shared", "own"] | None = Field(
        None,
        description="layer_skip: drafts over the target's KV cache, or one of their own; what the engine can, if left",
    )
    schedule: list[Range] | None = Field(None, description="[[first batch size, last, K], ...]: K by load, 0 is off")
    options: dict[str, Any] = Field(default_factory=dict, description="the engine's own keys, passed on as they are")

    @field_validator("layers", mode="before")
    @classmethod
    def _layers_in_a_row(cls, layers: Any) -> Any:
        """A list of layers too, and a single one: YAML reads 5 as a number."""
        if isinstance(layers, list) and all(type(layer) is int for layer in layers):
            return ",".join(map(str, layers))
        return str(layers) if type(layers) is int else layers

    @field_validator("options")
    @classmethod
    def _plain_values(cls, options: dict[str, Any]) -> dict[str, Any]:
        try:
            json.dumps(options, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"an option is no plain JSON value: {error}") from None
        return options

    @model_validator(mode="after")
    def _consistent(self) -> "Speculation":
        if self.method in NEEDS_DRAFT and not self.draft:
            raise ValueError(f"method {self.method} needs `draft`, the draft model's name")
        if self.method == "layer_skip" and not self.draft and not self.layers:
            raise ValueError(
                "method layer_skip needs `layers`, like 0-3,28,29, or `draft`, a directory that names them"
            )
        if self.method not in NEEDS_DRAFT | {"layer_skip"} and self.draft:
            raise ValueError(f"method {self.method} takes no `draft`")
        for method, words in _OWN_WORDS.items():
            if self.method != method and any(getattr(self, word) is not None for word in words):
                raise ValueError(
                    f"{', '.join(words[:-1])} and {words[-1]} belong to method {method}, not {self.method}"
                )
        if self.lookup_min and self.lookup_max and self.lookup_min > self.lookup_max:
            raise ValueError(f"lookup_min {self.lookup_min} is above lookup_max {self.lookup_max}")
        expected = 1
        for first, last, k in self.schedule or []:
            if first != expected or last < first:
                raise ValueError(
                    f"schedule entry [{first}, {last}, {k}]: ranges start at 1, follow one another without a gap "
                    "and do not end before they begin"
                )
            if k > self.num_speculative_tokens:
                raise ValueError(f"schedule entry [{first}, {last}, {k}]: K is above num_speculative_tokens")
            expected = last + 1
        return self


class Limits(Strict):
    """What the server may use and how many it serves."""

    max_model_len: int | None = Field(None, ge=16, description="prompt + answer, tokens")
    max_num_seqs: int | None = Field(None, ge=1, description="requests that run at once; the same in both arms")
    max_num_batched_tokens: int | None = Field(None, ge=1)
    memory_fraction: float | None = Field(None, gt=0, le=1, description="share of the device memory")
    kv_cache_gib: int | None = Field(None, ge=1, description="KV cache on a CPU, whole GiB (vLLM takes no fraction)")
    tensor_parallel: int = Field(1, ge=1)
    eager: bool = Field(False, description="no compilation and no graphs")


class Serving(Strict):
    """Where it listens. Loopback unless told otherwise."""

    host: str = "127.0.0.1"
    port: int = Field(8000, ge=1, le=65535)


class Container(Strict):
    """The image to run in. A tag moves, so a digest may pin it."""

    image: str = Field(min_length=1)
    digest: str | None = Field(None, pattern=r"^sha256:[0-9a-f]{64}$")
    arguments: list[str] = Field(default_factory=list, description="further arguments of docker run")

    @field_validator("arguments")
    @classmethod
    def _no_secrets(cls, arguments: list[str]) -> list[str]:
        for argument in arguments:
            name, equals, _ = argument.removeprefix("--env=").partition("=")
            if equals and is_secret(name):
                raise ValueError(f"{name} is a secret: set it in your own environment and give --env={name} alone")
        return arguments

    @property
    def reference(self) -> str:
        """`image@digest` when pinned, else the image."""
        return f"{self.image}@{self.digest}" if self.digest else self.image


class HostedAt(Strict):
    """Where a service already answers, and where the key that it asks for lies. Never the key itself."""

    url: str = Field(description="its OpenAI-style address, like https://api.example.com/v1")
    key_env: str | None = Field(None, description="the environment variable that holds the key")
    key_file: str | None = Field(None, description="the file that holds the key")

    @field_validator("url")
    @classmethod
    def _no_user_no_query(cls, url: str) -> str:
        if "@" in url or "?" in url:
            raise ValueError("the url must hold no user, password or query: name the key with key_env or key_file")
        if not re.match(r"https?://[^/\s]", url) or not url.isascii() or set(url) & set(" \t\r\n#"):
            raise ValueError("the url is none like https://api.example.com/v1")
        return url.rstrip("/")

    @field_validator("key_env")
    @classmethod
    def _names_a_variable(cls, name: str | None) -> str | None:
        if name is not None and not is_variable(name):
            raise ValueError("key_env is the NAME of an environment variable in capital letters, not the key")
        return name

    @model_validator(mode="after")
    def _one_key(self) -> "HostedAt":
        if self.key_env is not None and self.key_file is not None:
            raise ValueError("name the key with key_env or with key_file, not both")
        return self


class Profile(Strict):
    """One YAML file: engine, target, draft, limits, container, environment."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = ""
    engine: str
    device: Literal["gpu", "cpu"] = "gpu"
    target: Target
    speculation: Speculation | None = None
    limits: Limits = Limits()
    server: Serving = Serving()
    endpoint: HostedAt | None = Field(None, description="engine openai: a service that runs, with target.model's name")
    per_request_metrics: bool = Field(True, description="ask the engine for acceptance per request")
    container: Container | None = None
    environment: dict[str, str] = Field(default_factory=dict)
    engine_args: list[str] = Field(default_factory=list, description="further arguments, passed on as they are")
    sources: list[str] = Field(default_factory=list, description="where the values come from, and what is unknown")

    @model_validator(mode="before")
    @classmethod
    def _layers_are_the_targets(cls, data: Any) -> Any:
        """The draft of method layer_skip is some layers of the target: it is named after both."""
        match data:
            case {"speculation": {"method": "layer_skip", "layers": layers, **rest}, "target": {"model": model}}:
                words = ",".join(map(str, layers)) if isinstance(layers, list) else str(layers)
                draft = f"{model}{LAYERS_OF}{words.replace(' ', '')}"
                if layers is None or rest.get("draft") == draft:
                    return data
                if rest.get("draft"):
                    raise ValueError("speculation.layers and speculation.draft both say which layers draft: give one")
                return {**data, "speculation": {**data["speculation"], "draft": draft}}
        return data

    @field_validator("environment")
    @classmethod
    def _no_secret_values(cls, environment: dict[str, str]) -> dict[str, str]:
        for name in filter(is_secret, environment):
            raise ValueError(f"{name} is a secret: set it in your own environment, it is passed on from there")
        return environment

    @field_validator("engine_args")
    @classmethod
    def _no_secret_flags(cls, arguments: list[str]) -> list[str]:
        for flag in (argument.partition("=")[0] for argument in arguments if _SECRET_FLAG.match(argument)):
            raise ValueError(f"{flag} would show a secret to everyone on this machine: use the environment")
        return arguments

    @model_validator(mode="after")
    def _endpoint_is_not_ours(self) -> "Profile":
        if self.endpoint is None:
            return self
        if self.engine != "openai":
            raise ValueError(f"endpoint goes with engine openai; {self.engine} is launched")
        fields = type(self).model_fields
        ours = [
            name for name in _OF_A_LAUNCH if getattr(self, name) != fields[name].get_default(call_default_factory=True)
        ]
        if ours:
            raise ValueError(f"{', '.join(ours)}: a service at an endpoint runs as it was started, leave it out")
        return self

    @property
    def served_model(self) -> str:
        """The name that a request uses for the model."""
        return self.target.served_name or self.target.model


@dataclass(frozen=True, slots=True)
class Command:
    """What would run: argv, the environment variables that are set on top of ours, and the container.

    `filled_in` says what the profile left open and the adapter chose, each like a line of the profile. `precision` is
    what the weights are stored in, where their file says that and the profile does not.
    """

    argv: tuple[str, ...]
    env: dict[str, str]
    container: Container | None = None
    filled_in: tuple[str, ...] = ()
    precision: str | None = None


@dataclass(frozen=True, slots=True)
class SpecCounts:
    """What an engine reports of one request: raw counts, the bonus or fix token never counted.

    `steps` are those that carried a draft; None of an engine that counts tokens alone.

    `per_step_*` are lists over the steps that carried a draft, in order; None when the engine gives only sums.
    `accepted_histogram[i]` is the number of drafted steps that kept exactly i draft tokens (trailing zeros may be
    missing). `own` are the engine's own ratios under its own names, to be shown beside ours and never computed with.
    `passes` is the number of target passes where the engine's reports tell it exactly, and `tokens` the completion
    tokens of the request so far, where an engine tells them chunk by chunk.
    """

    steps: int | None
    drafted: int
    accepted: int
    num_speculative_tokens: int | None = None
    per_step_drafted: list[int] | None = None
    per_step_accepted: list[int] | None = None
    accepted_histogram: list[int] | None = None
    own: dict[str, float] = field(default_factory=dict)
    passes: int | None = None
    tokens: int | None = None

    def following(self, earlier: "SpecCounts | None") -> "SpecCounts":
        """What is known of a request after this report and the `earlier` ones; most engines tell all at once."""
        return self


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of /metrics, summed over engines and labels. None: the engine does not report it.

    All but `running`, `waiting` and `kv_tokens` only ever grow: use differences.
    """

    iterations: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    accepted_per_position: list[float] = field(default_factory=list)
    cached_tokens: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_tokens: float | None = None
    zero_drafts_tell: bool = True
    """False of an engine that counts drafts on every page, from zero, on a server that cannot draft as well."""

    @property
    def speculates(self) -> bool | None:
        """Whether the server drafts, as far as its page tells."""
        if self.iterations is None or (not self.drafts and self.drafts is not None and not self.zero_drafts_tell):
            return None
        return self.drafts is not None


@dataclass(frozen=True, slots=True)
class KnownFailure:
    """A boot failure that is recognised by its log, and what to do about it in one sentence."""

    pattern: str
    advice: str


class Engine(Protocol):
    """One engine's dialect. Adding an engine is one file that satisfies this and one line in `engines.ENGINES`."""

    name: str
    known_failures: Sequence[KnownFailure]
    key_variable: str | None
    """The environment variable from which the server takes the key that it asks of its clients."""
    owners: frozenset[str]
    """What its servers say as `owned_by` in /v1/models: how a running server is told from another."""
    version_at: tuple[str, str] | None
    """Path from the server's root, and the key in its JSON object, where a running server tells its version."""
    not_under_speculation: Mapping[str, str]
    """Fields of a request that a speculating server refuses or ignores, each with that limit in words."""
    greedy_on: frozenset[str]
    """Devices on which a speculating server answers greedily, whatever the temperature."""

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        """The command that serves `profile`; `resolve` turns a model's name into what the engine is given.

        Raises InputError when the engine cannot serve such a profile.
        """
        ...

    def installed_version(self) -> str | None:
        """Version of the engine in this Python, None when it is not installed."""
        ...

    def scheduling(self, profile: Profile) -> str | None:
        """`synchronous` or `asynchronous` as this engine's rules choose for `profile`; None when it has one mode."""
        ...

    def schedule_refusal(self, profile: Profile) -> str | None:
        """Why a schedule of K by load does not work for `profile` in this engine; None where it does."""
        ...

    def check(self, profile: Profile, configs: Callable[[str], str]) -> list[str]:
        """Problems that the installed engine's own parser and validators find, without GPU and weights.

        `configs` turns a model's name into a folder that holds its config.json. Raises EngineError when the engine
        is not installed here.
        """
        ...

    def request_fields(self) -> dict[str, Any]:
        """What to add to the body of a streamed chat request so that the answer tells the most."""
        ...

    def chunk_tokens(self, chunk: dict[str, Any]) -> int | None:
        """Tokens that one streamed chunk carries; None when the chunk does not say."""
        ...

    def prompt_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        """The prompt's token ids, in the chunk that tells them."""
        ...

    def answer_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        """The token ids that one streamed chunk carries; None when the chunk does not say."""
        ...

    def spec_counts(self, chunk: dict[str, Any]) -> SpecCounts | None:
        """Acceptance in a streamed chunk, None when this chunk has none."""
        ...

    def passes(self, completion_tokens: int, chunk_sizes: Sequence[int], counts: SpecCounts) -> tuple[int, int] | None:
        """Bounds (low, high) of the target passes of one request, the prefill included; equal when exact.

        None when the engine's reports do not bound them.
        """
        ...

    def counters(self, page: str) -> Counters:
        """Translate a /metrics page. Raises ValueError when it is not in the exposition format."""
        ...
