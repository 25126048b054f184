"""What one engine iteration costs: seconds against tokens in flight, as `toolkit verify-cost` measured it.

`StepCost` is what a prediction needs to know of a machine. It is satisfied by a measurement (here) and by a data sheet
(`roofline.py`).
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from toolkit.analysis.records import SCHEMA
from toolkit.engines.contract import LOOKUPS
from toolkit.errors import InputError

FILE = "cost.json"
UNKNOWN = "unknown"  # the method of a server that runs and does not tell


@dataclass(frozen=True, slots=True)
class Seconds:
    """One forward pass, and what binds it: the resource that would have to grow to make it faster."""

    seconds: float
    limit: str


class StepCost(Protocol):
    """What a machine takes for one forward pass, of the target and of the draft."""

    @property
    def source(self) -> str:
        """Where the numbers come from, in words for the reader of a prediction."""
        ...

    def target(self, tokens: float, held: float) -> Seconds:
        """A pass of the target over `tokens` new tokens, all requests hold `held` tokens of context together."""
        ...

    def draft(self, tokens: float, held: float) -> float:
        """Seconds of a pass of the draft; 0 for a lookup."""
        ...

    def fits(self, held_per_request: float, drafting: bool) -> float | None:
        """How many requests the KV cache holds, each with so many tokens, beside a draft's own when it is `drafting`.

        None when that is unknown.
        """
        ...


class Point(BaseModel):
    """Seconds of a pass over `tokens` new tokens of one request: the median of `repeats`, and the quartiles."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    tokens: int = Field(ge=1)
    seconds: float = Field(gt=0)
    low: float
    high: float
    repeats: int


class Curve(BaseModel):
    """Seconds of a pass against its new tokens, on a cached prompt of `context` tokens.

    Straight between two points. Beyond the last one the line through the last half of the points goes on.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    points: list[Point] = Field(min_length=2)
    context: int = Field(ge=0, description="cached tokens of the prompt that was continued")
    per_held_token: float = Field(0.0, ge=0, description="seconds that each further token of context adds to a pass")

    @field_validator("points")
    @classmethod
    def _ascending(cls, points: list[Point]) -> list[Point]:
        if any(a.tokens >= b.tokens for a, b in pairwise(points)):
            raise ValueError("the points of a curve ascend in tokens")
        return points

    def seconds(self, tokens: float, held: float) -> float:
        """A pass over `tokens` new tokens with `held` tokens of context; never below the curve's least."""
        x, y = [float(point.tokens) for point in self.points], _rising([point.seconds for point in self.points])
        if tokens >= x[-1]:
            return y[-1] + _slope(x, y) * (tokens - x[-1]) + self._context(held)
        at = max(1, bisect_left(x, tokens))
        share = max(0.0, (tokens - x[at - 1]) / (x[at] - x[at - 1]))
        return y[at - 1] + share * (y[at] - y[at - 1]) + self._context(held)

    def _context(self, held: float) -> float:
        return self.per_held_token * max(0.0, held - self.context)


def _rising(seconds: Sequence[float]) -> list[float]:
    """More tokens never take less time: where noise says so, neighbours share their mean (pool adjacent violators)."""
    pools: list[tuple[float, int]] = []
    for value in seconds:
        mean, size = value, 1
        while pools and pools[-1][0] > mean:
            before, count = pools.pop()
            mean, size = (before * count + mean * size) / (count + size), count + size
        pools.append((mean, size))
    return [mean for mean, size in pools for _ in range(size)]


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    half = min(len(x) // 2, len(x) - 2)
    return max(0.0, (y[-1] - y[half]) / (x[-1] - x[half]))


class Drafting(BaseModel):
    """An arm that was measured beside the plain engine: a pass of its target and all the drafting that follows it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str
    method: str
    draft: str | None = Field(None, description="the draft model or head; null for a lookup")
    num_speculative_tokens: int = Field(ge=1)
    curve: Curve
    kv_tokens: float | None = Field(None, description="tokens that its KV cache holds, the draft's own beside them")


class MeasuredCost(BaseModel):
    """`cost.json`: what `toolkit verify-cost` found on one machine for one target."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True, allow_inf_nan=False)

    schema_: int = Field(SCHEMA, alias="schema", ge=SCHEMA, le=SCHEMA)
    created: str
    name: str = Field(description="profile or URL of the engine without speculation")
    model: str
    hardware: dict[str, Any]
    plain: Curve = Field(description="without speculation")
    drafting: list[Drafting] = Field(default_factory=list)
    kv_tokens: float | None = None
    overhead: float = Field(description="seconds of a request that are no pass: taken off every reading")
    source: str | None = Field(None, description="where it comes from, when not from verify-cost")

    def shares(self) -> list[tuple[Drafting, float]]:
        """Every engine that drafts, with its c."""
        return [(one, MeasuredStep("", self.plain, one, None).c) for one in self.drafting]

    def step_cost(self, method: str | None, draft: str | None = None) -> "MeasuredStep | None":
        """What an arm's passes cost here; None when its drafting was not measured.

        A lookup that was not measured counts as free: it is, next to a pass.
        """
        method = method or UNKNOWN
        found = next((one for one in self.drafting if (one.method, one.draft) == (method, draft)), None)
        if found is None and method not in LOOKUPS | {"none"}:
            return None
        source = self.source or f"verify-cost on {self.name}, {self.created[:10]}"
        return MeasuredStep(source, self.plain, found, self.kv_tokens)


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """A `StepCost` from measured curves."""

    source: str
    plain: Curve
    drafting: Drafting | None
    kv_tokens: float | None

    def target(self, tokens: float, held: float) -> Seconds:
        """See `StepCost`. What binds is the largest part: what every pass pays, what its tokens or its context add."""
        fixed, bare = self.plain.seconds(1, 0), self.plain.seconds(tokens, 0)
        seconds = self.plain.seconds(tokens, held)
        parts = {"weights and overhead": fixed, "compute": bare - fixed, "KV cache reads": seconds - bare}
        return Seconds(seconds, max(parts, key=lambda part: parts[part]))

    def draft(self, tokens: float, held: float) -> float:
        """Seconds of one draft pass.

        After a target pass over m tokens the draft passes over the same m once and then over one token K - 1 times.
        With S the drafting and T the plain curve: D(1) = (S(1) - T(1)) / K, D(m) = S(m) - T(m) - (K - 1) D(1).
        """
        if self.drafting is None:
            return 0.0
        k = self.drafting.num_speculative_tokens
        one = max(0.0, self._extra(1, held)) / k
        return max(one, self._extra(tokens, held) - (k - 1) * one)

    @property
    def c(self) -> float:
        """Cost of one draft step over one target step, one request and one token each."""
        return self.draft(1, self.plain.context) / self.plain.seconds(1, self.plain.context)

    def fits(self, held_per_request: float, drafting: bool) -> float | None:
        """See `StepCost`."""
        own = self.drafting is not None and self.drafting.method not in LOOKUPS
        room = self.drafting.kv_tokens if drafting and own and self.drafting else self.kv_tokens
        return room / held_per_request if room and held_per_request > 0 else None

    def _extra(self, tokens: float, held: float) -> float:
        assert self.drafting is not None
        return self.drafting.curve.seconds(tokens, held) - self.plain.seconds(tokens, held)


def read_cost(path: Path) -> MeasuredCost:
    """`cost.json` of a folder, or the file itself. Raises InputError."""
    file = path / FILE if path.is_dir() else path
    try:
        return MeasuredCost.model_validate_json(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(f"{path}: holds no {FILE}, which `toolkit verify-cost` writes.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read: {error}.") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) + ": " if first["loc"] else ""
        raise InputError(f"{file}: not a {FILE} of this version: {where}{first['msg']}.") from None
