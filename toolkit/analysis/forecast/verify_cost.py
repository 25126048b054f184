"""Measuring what a step costs: passes over 1, 2, 4 ... new tokens on a cached prompt, without and with drafting.

A request for one token on a prompt whose beginning is cached is one pass of the engine over the rest of it. What the
request takes beside the pass (HTTP, scheduling) is found once, as the difference between such a request over one new
token and a decoding step, and taken off every reading. How many tokens were new, the engine's prefix cache counter
tells, reading by reading.
"""

import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from toolkit.analysis.arms import Arm, Live, can_stay_resident
from toolkit.analysis.ask import Ask, arms_of
from toolkit.analysis.endpoint import Endpoint
from toolkit.analysis.forecast.cost import FILE, UNKNOWN
from toolkit.analysis.forecast.readings import Reading, cost_of
from toolkit.analysis.sweep import Progress
from toolkit.engines.contract import Profile
from toolkit.errors import EngineError, InputError
from toolkit.launch.hardware import hardware

TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
REPEATS = 9
SHORT, LONG = 384, 4096  # tokens of the cached prompt, as far as the model's length allows: a quarter, three quarters
DECODED = 32  # tokens of an answer that shows the decoding step
IDS = range(1000, 9000)  # token ids that every vocabulary has, none of them special
TIMEOUT = 300.0


@dataclass(frozen=True, slots=True)
class CostAsk:
    """What `toolkit verify-cost` is asked: profiles that it launches, or servers that run."""

    profiles: Sequence[str] = ()
    base_url: str | None = None
    baseline_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    changes: Sequence[str] = ()
    repeats: int = REPEATS
    run: Path | None = None
    runs: Path = field(default_factory=lambda: Path("runs"))


def verify_cost(ask: CostAsk, progress: Progress) -> Path:
    """Measure; returns the folder that holds `cost.json` and, line by line as they came, `readings.jsonl`.

    Raises InputError when the ask cannot be met, EngineError when an engine fails or caches no prompts.
    """
    if not 3 <= ask.repeats <= 1000:
        raise InputError(f"--repeats {ask.repeats}: from 3 to 1000.")
    plain, drafting = _arms(ask)
    folder = _folder(ask, plain.name)
    arms = [plain, *drafting]
    readings: list[Reading] = []
    model = plain.profile.target.model if plain.profile else ""
    resident = can_stay_resident(arms)
    with ExitStack() as opened:
        live = opened.enter_context(Live(arms, resident))
        write: Callable[[Reading], None] | None = None
        for group in [arms] if resident else [[arm] for arm in arms]:
            probes = [_Probe(arm.name, live.endpoint(arm, progress.stage)) for arm in group]
            _check_roles(live, plain, drafting)
            model = model or probes[0].model
            write = write or opened.enter_context(_appending(folder / "readings.jsonl"))
            for done in range(ask.repeats):
                for probe in probes:
                    progress.stage(f"{probe.name}: passes over {TOKENS[0]} to {TOKENS[-1]} new tokens")
                    for reading in probe.round(first=done == 0):
                        write(reading)
                        readings.append(reading)
                progress.cells(done + 1, ask.repeats, None)
        found = [_drafting(arm, live) for arm in drafting]
        kv_tokens = {name: counters.kv_tokens for name, counters in live.counters.items()}
    cost = cost_of(readings, plain.name, found, kv_tokens).model_copy(
        update={"model": model, "hardware": hardware() if ask.profiles else {}}
    )
    (folder / FILE).write_text(cost.model_dump_json(indent=1, by_alias=True) + "\n", encoding="utf-8")
    return folder


def _check_roles(live: Live, plain: Arm, drafting: Sequence[Arm]) -> None:
    """Raises InputError when a server that runs does not do what its place says."""
    if live.speculates(plain):
        raise InputError(
            f"{plain.url} speculates: give it as --base-url, and a server that does not as --baseline-url."
        )
    still = next((arm for arm in drafting if live.speculates(arm) is False), None)
    if still is not None:
        raise InputError(f"{still.url} does not speculate: there is no drafting to measure at --base-url.")


class _Probe:
    """One engine that is asked for one token at a time."""

    def __init__(self, name: str, endpoint: Endpoint) -> None:
        self.name = name
        self._endpoint = endpoint
        self._random = random.Random(secrets.randbits(64))
        length = int(dict(endpoint.facts).get("max_model_len", 4 * SHORT))
        self._prompts = [self._ids(size) for size in (min(SHORT, length // 4), min(LONG, length * 3 // 4))]
        self._room = length

    @property
    def model(self) -> str:
        """The name by which the server knows its model."""
        return self._endpoint.model

    def round(self, first: bool) -> Iterator[Reading]:
        """Every point once, the contexts warm. The first round caches the prompts and is preceded by a warm-up."""
        with httpx.Client(timeout=TIMEOUT, headers=self._endpoint.headers, trust_env=False) as client:
            cached = [self._cached(client, prompt) for prompt in self._prompts]
            short, long = (prompt[:hits] for prompt, hits in zip(self._prompts, cached, strict=True))
            sizes = [tokens for tokens in TOKENS if len(short) + tokens + DECODED < self._room]
            if first:  # shapes that are new to the engine may compile
                for tokens in sizes:
                    self._ask(client, short + self._ids(tokens), 1)
            for tokens in sizes:
                yield self._pass(client, short, tokens)
            yield self._pass(client, long, 1)
            prompt = short + self._ids(1)
            one = self._ask(client, prompt, 1)
            many = self._ask(client, short + self._ids(1), DECODED + 1)
            step = (many - one) / DECODED
            if step > 0:
                yield Reading(engine=self.name, kind="decode", tokens=1, context=len(short), seconds=step)

    def _pass(self, client: httpx.Client, prefix: list[int], tokens: int) -> Reading:
        """A pass over `tokens` new tokens, or however many the engine's own counter says were new."""
        before = self._hits(client)
        seconds = self._ask(client, prefix + self._ids(tokens), 1)
        hits = int(self._hits(client) - before)
        new = len(prefix) + tokens - hits
        return Reading(engine=self.name, kind="pass", tokens=max(1, new), context=hits, seconds=seconds)

    def _cached(self, client: httpx.Client, prompt: list[int]) -> int:
        """Tokens of `prompt` that the engine now holds in whole blocks."""
        self._ask(client, prompt, 1)
        before = self._hits(client)
        self._ask(client, prompt, 1)
        hits = int(self._hits(client) - before)
        if not 0 < hits < len(prompt):
            raise EngineError(
                f"{self._endpoint.base_url}: a prompt of {len(prompt)} tokens served twice was not found in the prefix "
                "cache. Start the engine with prefix caching, and let no one else use it meanwhile."
            )
        return hits

    def _hits(self, client: httpx.Client) -> float:
        try:
            page = client.get(self._endpoint.metrics_url)
        except httpx.HTTPError as error:
            raise EngineError(f"{self._endpoint.metrics_url}: {error or type(error).__name__}.") from None
        counters = self._endpoint.counters(page.text) if page.status_code == 200 else None
        if counters is None or counters.cached_tokens is None:
            raise EngineError(
                f"{self._endpoint.metrics_url} shows no prefix cache counter (vLLM: vllm:prefix_cache_hits_total): "
                "without it nobody knows how many tokens of a prompt were new."
            )
        return counters.cached_tokens

    def _ask(self, client: httpx.Client, prompt: list[int], max_tokens: int) -> float:
        body = {
            "model": self._endpoint.model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        url = f"{self._endpoint.base_url}/completions"
        begun = time.perf_counter()
        try:
            answer = client.post(url, json=body)
        except httpx.HTTPError as error:
            raise EngineError(f"{url}: {error or type(error).__name__}.") from None
        seconds = time.perf_counter() - begun
        if answer.status_code != 200:
            raise EngineError(f"{url} answered {answer.status_code}: {answer.text[:200]}")
        return seconds

    def _ids(self, count: int) -> list[int]:
        return self._random.choices(IDS, k=count)


def without_speculation(profile: Profile, name: str) -> Profile:
    """The same engine, limits and target, nothing drafted."""
    return profile.model_copy(update={"name": name, "speculation": None})


def _arms(ask: CostAsk) -> tuple[Arm, list[Arm]]:
    """The engine without speculation, and those that draft."""
    if not ask.profiles and ask.base_url is None:
        raise InputError("nothing to measure: give --profile NAME, or --base-url URL of a running server.")
    named = Ask(
        profiles=ask.profiles,
        base_url=ask.base_url,
        baseline_url=ask.baseline_url,
        model=ask.model,
        api_key_env=ask.api_key_env,
        api_key_file=ask.api_key_file,
        changes=ask.changes,
    )
    arms, baseline = arms_of(named)
    if not ask.profiles:
        return (baseline, arms) if baseline else (arms[0], [])
    profiles = [arm.profile for arm in arms if arm.profile is not None]
    if len(profiles) < len(arms):
        raise InputError("--profile: a service at an endpoint is not launched here; measure its steps with --base-url.")
    bare = {
        without_speculation(profile, "").model_dump_json(exclude={"description", "sources"}) for profile in profiles
    }
    if len(bare) > 1:
        raise InputError("--profile: the profiles differ in more than their speculation: measure them one by one.")
    drafting = [arm for arm in arms if arm.profile and arm.profile.speculation]
    still = next((arm for arm in arms if arm.profile and not arm.profile.speculation), None)
    return still or Arm(
        f"{profiles[0].name}-plain", without_speculation(profiles[0], f"{profiles[0].name}-plain")
    ), drafting


def _drafting(arm: Arm, live: Live) -> tuple[str, str, str | None, int]:
    """Name, method, draft and K. Of a server that runs only K is known, from the positions that its counters show."""
    speculation = arm.profile.speculation if arm.profile else None
    if speculation is None:
        counters = live.counters.get(arm.name)
        return arm.name, UNKNOWN, None, max(1, len(counters.accepted_per_position)) if counters else 1
    return arm.name, speculation.method, speculation.draft, speculation.num_speculative_tokens


def _folder(ask: CostAsk, name: str) -> Path:
    folder = ask.run or ask.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-cost-{name.replace(':', '-').replace('/', '-')}"
    if (folder / FILE).exists():
        raise InputError(f"{folder / FILE} is there already: choose another --run.")
    return folder


@contextmanager
def _appending(path: Path) -> Iterator[Callable[[Reading], None]]:
    """A function that appends readings to a file, a line each."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a", encoding="utf-8")
    except OSError as error:
        raise InputError(f"--run {path.parent}: cannot be used: {error.strerror}.") from None
    with file:
        yield lambda reading: print(reading.model_dump_json(), file=file, flush=True)
