"""What a sweep writes down: one record per request, one per finished cell. These models are the file format.

Times are seconds. A request's own times count from the moment it was sent; `sent` and the window count from the start
of its cell. Unavailable is None, never 0.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

SCHEMA = 1
Side = Literal["arm", "baseline"]


class CellKey(BaseModel):
    """One cell: arm x workload x concurrency x round, and which side of its pair it is.

    A pair is the two cells that differ in `side` alone: `arm` names the arm that both belong to.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    arm: str
    side: Side
    workload: str
    concurrency: int = Field(ge=1)
    round: int = Field(ge=1)

    def __str__(self) -> str:
        return f"{self.workload}/{self.concurrency}/{self.round}/{self.arm}/{self.side}"


class AttemptRecord(BaseModel):
    """A cell that was begun: from here on its prompts may have been served, though no request of it has ended."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    schema_: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    cell: CellKey
    attempt: int = Field(ge=1)


class RequestRecord(BaseModel):
    """One request as the client saw it, with the engine's counts translated by its adapter."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    schema_: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    cell: CellKey
    attempt: int = Field(ge=1)
    served_by: str = Field(description="profile or URL that answered")
    warmup: bool
    category: str
    prompt: int = Field(description="index in the workload")
    prompt_hash: str
    sent: float
    ttft: float | None = Field(None, description="first token of content, reasoning or tool call")
    ended: float = Field(description="last byte, or the moment of the error; from `sent`")
    chunks: list[tuple[float, int | None]] = Field(default_factory=list, description="(arrival, tokens) per chunk")
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    finish_reason: str | None = None
    steps: int | None = Field(None, description="target passes that carried a draft")
    drafted: int | None = None
    accepted: int | None = None
    per_step_drafted: list[int] | None = None
    per_step_accepted: list[int] | None = None
    accepted_histogram: list[int] | None = Field(None, description="drafted steps by how many tokens they kept")
    own: dict[str, float] = Field(default_factory=dict, description="the engine's own ratios, by its own names")
    prompt_ids_hash: str | None = Field(None, description="of the prompt's token ids, where the engine tells them")
    answer_ids_hash: str | None = Field(None, description="of the answer's token ids, where the engine tells them")
    passes: tuple[int, int] | None = Field(None, description="bounds of the target passes, the prefill included")
    rate_limited: int | None = Field(None, description="attempts that a rate limit refused; absent: none")
    held_back: float | None = Field(None, description="seconds from the first attempt to `sent`, the last one")
    error: str | None = None


class CounterReading(BaseModel):
    """The engine's counters at one moment, as differences are taken from them later."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    at: float
    iterations: float | None = None
    generation_tokens: float | None = None
    preemptions: float | None = None
    drafts: float | None = None
    drafted: float | None = None
    accepted: float | None = None
    accepted_per_position: list[float] = Field(default_factory=list)


class CellRecord(BaseModel):
    """One finished cell. Its line is what makes the cell count: an interrupted cell has none."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    schema_: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    cell: CellKey
    attempt: int = Field(ge=1)
    served_by: str
    order: int = Field(description="position in which the cells of the run were measured")
    finished_at: str = Field(description="UTC, ISO 8601")
    seconds: float = Field(description="the cell's whole duration, warm-up included")
    requests: int
    failed: int
    window: tuple[float, float] | None = Field(None, description="n requests in flight, all measured ones")
    window_tokens: float | None = Field(None, description="output tokens that arrived inside the window")
    counters: list[CounterReading] = Field(
        default_factory=list, description="at the cell's start, window open, window close, the cell's end"
    )
    running_peak: float | None = Field(None, description="highest running count seen on /metrics")
    client_cpu: float = Field(description="the client's share of one core during the cell")
    rate_limited: int | None = Field(
        None, description="requests that a rate limit held back, warm-up too; absent: none"
    )
    held_back: float | None = Field(None, description="seconds that they were, all together")
    prompts_digest: str

    @property
    def tokens_per_second(self) -> float | None:
        """Output tokens per second inside the window."""
        if self.window is None or self.window_tokens is None or self.window[1] <= self.window[0]:
            return None
        return self.window_tokens / (self.window[1] - self.window[0])
