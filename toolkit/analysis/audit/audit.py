"""`toolkit audit`: ask both sides the same, keep every reply, judge what was kept."""

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from toolkit import __version__
from toolkit.analysis.arms import Arm, Live, can_stay_resident
from toolkit.analysis.ask import arm_of
from toolkit.analysis.audit import questions
from toolkit.analysis.audit.asking import SCORED, Asking, RefusedError, Request
from toolkit.analysis.audit.distribution import judge_transforms, power
from toolkit.analysis.audit.examples import unlikely_tokens
from toolkit.analysis.audit.greedy import judge_greedy
from toolkit.analysis.audit.judgement import Judgement, judge
from toolkit.analysis.audit.questions import Sampled
from toolkit.analysis.audit.rates import judge_rates
from toolkit.analysis.audit.replies import Reply, read_replies, write_replies
from toolkit.analysis.audit.structure import judge_structure
from toolkit.analysis.audit.transform import scored, transform
from toolkit.analysis.audit.two_samples import judge_samples
from toolkit.analysis.sweep import Progress
from toolkit.engines.contract import LOOKUPS, Profile
from toolkit.errors import InputError
from toolkit.launch.hardware import hardware
from toolkit.launch.profile import load_profile

FILE = "audit.json"
EXTENSIONS = frozenset({"logprobs", "top_logprobs", "return_tokens_as_token_ids", "top_k"})
"""Fields that a server may refuse without losing the whole audit."""
MOST_TOKENS, FEWEST_TOKENS = 200_000, 200
MOST_TOP_K = 16


@dataclass(frozen=True, slots=True)
class AuditAsk:
    """What a person asks of `toolkit audit`: a profile that is launched, or servers that run."""

    profile: str | None = None
    baseline: str | None = None
    base_url: str | None = None
    reference_url: str | None = None
    model: str | None = None
    api_key_env: str | None = None
    changes: Sequence[str] = ()
    how: Sampled = field(default_factory=Sampled)
    run: Path | None = None
    runs: Path = field(default_factory=lambda: Path("runs"))


@dataclass(frozen=True, slots=True)
class About:
    """What `audit.json` says beside the replies: enough to judge them again."""

    arm: str
    baseline: str
    toolkit_version: str
    how: Sampled
    drafts_per_step: int
    one_hot: bool
    structure_refused: str = ""
    scores_refused: str = ""
    seconds: float = 0.0
    hardware: dict[str, object] = field(default_factory=dict)


_ABOUT = TypeAdapter(About)


def audit(ask: AuditAsk, progress: Progress) -> Path:
    """Ask everything; returns the Run directory with `audit.json` and `replies.jsonl`.

    Raises InputError when the ask cannot be met, EngineError when a server fails.
    """
    arm, baseline = _arms(ask)
    if not FEWEST_TOKENS <= ask.how.tokens <= MOST_TOKENS:
        raise InputError(f"--tokens {ask.how.tokens}: from {FEWEST_TOKENS} to {MOST_TOKENS}.")
    if ask.how.top_k is None and ask.how.temperature != 1:
        raise InputError(f"--temperature {ask.how.temperature:g} needs --top-k, 16 or less: else p is not known.")
    if ask.how.top_k is not None and not 1 < ask.how.top_k <= MOST_TOP_K:
        raise InputError(f"--top-k {ask.how.top_k}: from 2 to {MOST_TOP_K}, since servers score {SCORED} tokens.")
    if not 0 < ask.how.temperature <= 2:
        raise InputError(f"--temperature {ask.how.temperature}: above 0, to 2; temperature 0 is audited anyway.")
    folder = _folder(ask, arm.name)
    with Live([arm, baseline], can_stay_resident([arm, baseline])) as live:
        about = asyncio.run(_collect(live, arm, baseline, ask.how, folder, progress))
    (folder / FILE).write_text(json.dumps(asdict(about), indent=1) + "\n", encoding="utf-8")
    return folder


def judge_folder(folder: Path) -> Judgement:
    """The judgement of a finished audit, from its folder alone. Raises InputError when it holds none."""
    try:
        about = _ABOUT.validate_json((folder / FILE).read_bytes())
    except (OSError, ValidationError):
        raise InputError(f"{folder}: holds no finished audit ({FILE} is missing or not readable).") from None
    return judge_replies(read_replies(folder), about)


def judge_replies(replies: Sequence[Reply], about: About) -> Judgement:
    """All four levels. The draws of the transform are seeded: the same replies give the same verdict."""
    rng = np.random.default_rng(about.how.seed)
    sampled = {side: [r for r in replies if r.question == "sample" and r.side == side] for side in ("arm", "baseline")}
    ours, theirs = scored(sampled["arm"]), scored(sampled["baseline"])
    arm = transform(ours, theirs, about.how.temperature, about.how.top_k, rng)
    control = transform(theirs, ours, about.how.temperature, about.how.top_k, rng)
    drafted = [reply.counts.drafted for reply in sampled["arm"] if reply.counts is not None]
    if about.scores_refused:
        distribution = judge_samples(replies, rng)
    else:
        distribution = judge_transforms(arm, control, sum(drafted) if drafted else -1, rng)
        examples = unlikely_tokens(sampled["arm"], about.how.temperature, about.how.top_k)
        distribution = replace(distribution, examples=examples)
    findings = {
        "greedy": judge_greedy(replies, about.drafts_per_step),
        "distribution": distribution,
        "acceptance": judge_rates(sampled["arm"], arm, about.one_hot),
        "structure": judge_structure(replies, about.structure_refused),
    }
    judged = sum(check.judged for found in findings.values() for check in found.tests)
    return judge(findings, None if about.scores_refused else power(arm.possible, control.possible, judged))


async def _collect(
    live: Live, arm: Arm, baseline: Arm, how: Sampled, folder: Path, progress: Progress
) -> About:
    begun = time.monotonic()
    replies: list[Reply] = []
    refused = scores_refused = ""

    def keep(found: Sequence[Reply]) -> None:
        write_replies(folder, found)
        replies.extend(found)

    stops: list[Request] = []
    for side, one in (("arm", arm), ("baseline", baseline)):
        endpoint = live.endpoint(one, progress.stage)
        async with Asking("arm" if side == "arm" else "baseline", endpoint) as asking:
            for concurrency in (questions.ALONE, questions.TOGETHER):
                progress.stage(f"{one.name}: greedy, {concurrency} at once")
                found = await _without_extensions(asking, questions.greedy(concurrency))
                keep(found)
            stops = stops or questions.stops(found)
            if stops:
                keep(await asking.generate(stops))
            progress.stage(f"{one.name}: {how.tokens} tokens at temperature {how.temperature:g}")
            sampled = await _without_extensions(asking, questions.samples(how))
            progress.stage(f"{one.name}: strict JSON")
            try:
                keep(await asking.generate(questions.structures()))
            except RefusedError as error:
                refused = f"{one.name} does not take a JSON schema: {error}"
            if side == "arm":
                ours = sampled
                continue
            progress.stage(f"{one.name}: scoring what was emitted")
            try:
                keep(await _scored(asking, [*ours, *sampled], how.concurrency))
            except RefusedError as error:
                scores_refused = f"{one.name} does not score tokens: {error}"
                keep([*ours, *sampled])
    return About(
        arm=arm.name,
        baseline=baseline.name,
        toolkit_version=__version__,
        how=how,
        drafts_per_step=_drafts_per_step(arm, replies),
        one_hot=arm.profile is not None and _drafts_one_hot(arm.profile),
        structure_refused=refused,
        scores_refused=scores_refused,
        seconds=round(time.monotonic() - begun, 1),
        hardware=hardware() if arm.profile else {},
    )


async def _without_extensions(asking: Asking, requests: Sequence[Request]) -> list[Reply]:
    """Replies, asked for again in plain OpenAI fields where the server refuses vLLM's."""
    try:
        return await asking.generate(requests)
    except RefusedError as error:
        plain = [
            replace(one, fields={name: value for name, value in one.fields.items() if name not in EXTENSIONS})
            for one in requests
        ]
        try:
            return await asking.generate(plain)
        except RefusedError:
            raise InputError(f"{asking.endpoint.name} refuses the audit's questions: {error}") from None


async def _scored(asking: Asking, replies: Sequence[Reply], concurrency: int) -> list[Reply]:
    """Raises RefusedError when the reference cannot score, or the replies carry no token ids."""
    if not all(reply.prompt_ids and reply.chunks for reply in replies):
        raise RefusedError("the replies carry no token ids, and retokenised text is not what was emitted")
    found = await asking.score([(reply.prompt_ids, reply.token_ids) for reply in replies], concurrency)
    return [replace(reply, scores=one.rows, words=one.words) for reply, one in zip(replies, found, strict=True)]


def _drafts_per_step(arm: Arm, replies: Sequence[Reply]) -> int:
    if arm.profile is not None and arm.profile.speculation is not None:
        return arm.profile.speculation.num_speculative_tokens
    told = [r.counts.num_speculative_tokens for r in replies if r.counts and r.counts.num_speculative_tokens]
    return max(told) if told else max((max(r.chunks, default=1) for r in replies), default=1) - 1


def _drafts_one_hot(profile: Profile) -> bool:
    """vLLM's models draft greedily unless told otherwise (config/speculative.py, draft_sample_method)."""
    if profile.speculation is None:
        return False
    greedy = profile.engine == "vllm" and profile.speculation.options.get("draft_sample_method", "greedy") == "greedy"
    return profile.speculation.method in LOOKUPS or greedy


def _arms(ask: AuditAsk) -> tuple[Arm, Arm]:
    if (ask.profile is None) == (ask.base_url is None):
        raise InputError("give --profile (we launch it) or --base-url (it already runs), one of them.")
    if ask.base_url is not None:
        if ask.reference_url is None or ask.baseline is not None or ask.changes:
            raise InputError("--base-url needs --reference-url, the same model without speculation, and no --baseline.")
        return (
            Arm("arm", url=ask.base_url, model=ask.model, key_env=ask.api_key_env),
            Arm("reference", url=ask.reference_url, model=ask.model, key_env=ask.api_key_env),
        )
    assert ask.profile is not None
    if ask.reference_url is not None:
        raise InputError("--reference-url goes with --base-url; with --profile name a --baseline profile.")
    profile = load_profile(ask.profile, ask.changes)
    if profile.speculation is None:
        raise InputError(f"profile {profile.name} does not speculate: there is nothing to audit.")
    if ask.baseline is not None:
        opponent = load_profile(ask.baseline)
        if opponent.speculation is not None:
            raise InputError(f"--baseline {ask.baseline} speculates itself: name a profile that does not.")
    else:
        opponent = profile.model_copy(update={"name": f"{profile.name}-plain", "speculation": None})
    return arm_of(profile), arm_of(opponent)


def _folder(ask: AuditAsk, name: str) -> Path:
    folder = ask.run or ask.runs / f"{time.strftime('%Y%m%d-%H%M%S')}-audit-{name.replace('/', '-')}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InputError(f"--run {folder}: is not empty; an audit takes a directory of its own.")
    except OSError as error:
        raise InputError(f"--run {folder}: cannot be used: {error.strerror}.") from None
    return folder
