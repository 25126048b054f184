"""`toolkit audit`: ask both sides the same, keep every reply, judge what was kept."""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from toolkit import __version__
from toolkit.analysis.arms import Arm, Live, can_stay_resident
from toolkit.analysis.ask import arm_of, refuse_beside_profile
from toolkit.analysis.audit import questions
from toolkit.analysis.audit.asking import SCORED, Asking, RefusedError, Request
from toolkit.analysis.audit.distribution import judge_transforms, power
from toolkit.analysis.audit.examples import telling_examples
from toolkit.analysis.audit.greedy import judge_greedy
from toolkit.analysis.audit.judgement import Judgement, judge
from toolkit.analysis.audit.questions import Sampled
from toolkit.analysis.audit.rates import judge_rates
from toolkit.analysis.audit.replies import Reply, comparable, read_replies, write_replies
from toolkit.analysis.audit.structure import judge_structure
from toolkit.analysis.audit.transform import Transformed, lacking, scored, transform
from toolkit.analysis.audit.two_samples import judge_samples
from toolkit.analysis.sweep import Progress
from toolkit.engines import engine
from toolkit.engines.contract import LOOKUPS, Profile
from toolkit.errors import InputError
from toolkit.launch.hardware import hardware
from toolkit.launch.profile import load_profile

FILE = "audit.json"
GREEDY = ("greedy", "stop")
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
    api_key_file: str | None = None
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
    engine: str = "vllm"
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
    how, rng = about.how, np.random.default_rng(about.how.seed)
    sampled = {side: [r for r in replies if r.question == "sample" and r.side == side] for side in ("arm", "baseline")}
    ours, theirs = scored(sampled["arm"]), scored(sampled["baseline"])
    arm = transform(ours, theirs, how.temperature, how.top_k, rng)
    control = transform(theirs, ours, how.temperature, how.top_k, rng)
    examples = telling_examples(sampled["arm"], sampled["baseline"], how.temperature, how.top_k)
    return judge_transformed(replies, arm, control, about, rng, examples)


def judge_transformed(
    replies: Sequence[Reply],
    arm: Transformed,
    control: Transformed,
    about: About,
    rng: np.random.Generator,
    examples: Sequence[str] = (),
) -> Judgement:
    """The same from the transforms of both sides' sampled tokens, and `examples` of the arm's."""
    sampled = [reply for reply in replies if reply.question == "sample"]
    drafted = [reply.counts.drafted for reply in sampled if reply.side == "arm" and reply.counts is not None]
    if about.scores_refused:
        distribution = judge_samples(comparable(sampled), about.scores_refused, rng)
    else:
        found = judge_transforms(arm, control, sum(drafted) if drafted else -1)
        distribution = replace(found, examples=list(examples))
    findings = {
        "greedy": judge_greedy(comparable([r for r in replies if r.question in GREEDY]), about.drafts_per_step),
        "distribution": distribution,
        "acceptance": judge_rates(sampled, arm, about.one_hot, engine(about.engine)),
        "structure": judge_structure(replies, about.structure_refused),
    }
    judged = sum(check.judged for found in findings.values() for check in found.tests)
    return judge(findings, None if about.scores_refused else power(arm.possible, control.possible, judged))


async def _collect(live: Live, arm: Arm, baseline: Arm, how: Sampled, folder: Path, progress: Progress) -> About:
    begun = time.monotonic()
    endpoint = live.endpoint(arm, progress.stage)
    if live.speculates(baseline):
        raise InputError(f"{baseline.name} speculates itself: it cannot show what the model alone would say.")
    async with Asking("arm", endpoint) as asking:
        ours = await _ask(asking, how, None, progress.stage)
    write_replies(folder, ours.replies)
    async with Asking("baseline", live.endpoint(baseline, progress.stage)) as asking:
        theirs = await _ask(asking, how, ours, progress.stage)
        write_replies(folder, theirs.replies)
        progress.stage(f"{baseline.name}: scoring what was emitted")
        how = replace(how, top_k=None) if ours.plain else how
        sampled, scores_refused = [*ours.sampled, *theirs.sampled], ""
        try:
            sampled = await _scored(asking, sampled, how)
        except RefusedError as error:
            scores_refused = f"{baseline.name} does not score tokens: {error}"
    replies = [*ours.replies, *theirs.replies, *sampled]
    write_replies(folder, sampled)
    return About(
        arm=arm.name,
        baseline=baseline.name,
        toolkit_version=__version__,
        how=how,
        drafts_per_step=_drafts_per_step(arm, replies),
        one_hot=arm.profile is not None and drafts_one_hot(arm.profile),
        engine=endpoint.engine.name,
        structure_refused=ours.structure_refused or theirs.structure_refused,
        scores_refused=scores_refused,
        seconds=round(time.monotonic() - begun, 1),
        hardware=hardware() if arm.profile else {},
    )


@dataclass(frozen=True, slots=True)
class _Answers:
    """What one side answered, its samples apart: they are to be scored. `stops` is what both sides are asked.

    `plain`: the samples were asked for in OpenAI's fields alone.
    """

    replies: list[Reply]
    sampled: list[Reply]
    stops: list[Request]
    plain: bool
    structure_refused: str = ""


async def _ask(asking: Asking, how: Sampled, first: _Answers | None, stage: Callable[[str], None]) -> _Answers:
    """All questions to one side; `first` is what the other side, asked before, answered."""
    name, replies, refused = asking.endpoint.name, list[Reply](), ""
    for concurrency in (questions.ALONE, questions.TOGETHER):
        stage(f"{name}: greedy, {concurrency} at once")
        found, _ = await _generated(asking, questions.greedy(concurrency), plain=False)
        replies += found
    stops = first.stops if first else questions.stops(found)
    with suppress(RefusedError):  # a server without stop strings cannot end at one
        replies += await asking.generate(stops)
    stage(f"{name}: {how.tokens} tokens at temperature {how.temperature:g}")
    sampled, plain = await _generated(asking, questions.samples(how), plain=first is not None and first.plain)
    if first is not None and plain and not first.plain and how.top_k is not None:
        raise InputError(f"{name} does not take top_k, which the other side takes: they cannot be asked the same.")
    stage(f"{name}: strict JSON")
    try:
        replies += await asking.generate(questions.structures())
    except RefusedError as error:
        refused = f"{name} does not take a JSON schema: {error}"
    return _Answers(replies, sampled, stops, plain, refused)


async def _generated(asking: Asking, requests: Sequence[Request], plain: bool) -> tuple[list[Reply], bool]:
    """Replies, asked for in plain OpenAI fields where the server refuses vLLM's, and whether they were."""
    try:
        return await asking.generate(questions.plain(requests) if plain else requests), plain
    except RefusedError as error:
        if plain:
            raise InputError(f"{asking.endpoint.name} refuses the audit's questions: {error}") from None
        refusal = error
    try:
        return await asking.generate(questions.plain(requests)), True
    except RefusedError:
        raise InputError(f"{asking.endpoint.name} refuses the audit's questions: {refusal}") from None


async def _scored(asking: Asking, replies: Sequence[Reply], how: Sampled) -> list[Reply]:
    """Raises RefusedError when the reference cannot score, or the replies carry no token ids."""
    if how.top_k is None and how.temperature != 1:
        raise RefusedError(f"the servers take no top_k, so that p is not known at temperature {how.temperature:g}")
    if any(reply.text and not (reply.prompt_ids and reply.token_ids) for reply in replies):
        raise RefusedError("the replies carry no token ids, and retokenised text is not what was emitted")
    emitted = [reply for reply in replies if reply.prompt_ids and reply.token_ids]
    found = await asking.score([(reply.prompt_ids, reply.token_ids) for reply in emitted], how.concurrency)
    if lacks := next((lacks for one in found for row in one.rows if (lacks := lacking(row, how.top_k))), ""):
        raise RefusedError(lacks)
    return [replace(reply, scores=one.rows, words=one.words) for reply, one in zip(emitted, found, strict=True)]


def _drafts_per_step(arm: Arm, replies: Sequence[Reply]) -> int:
    if arm.profile is not None and arm.profile.speculation is not None:
        return arm.profile.speculation.num_speculative_tokens
    told = [r.counts.num_speculative_tokens for r in replies if r.counts and r.counts.num_speculative_tokens]
    return max(told) if told else max((max(r.chunks, default=1) for r in replies), default=1) - 1


def drafts_one_hot(profile: Profile) -> bool:
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
            raise InputError(
                "--base-url needs --reference-url, the same model without speculation; --baseline and --set go with "
                "--profile."
            )
        if ask.reference_url.rstrip("/") == ask.base_url.rstrip("/"):
            raise InputError("--reference-url is the same server as --base-url: it must run without speculation.")
        arm, reference = (
            Arm(name, url=url, model=ask.model, key_env=ask.api_key_env, key_file=ask.api_key_file)
            for name, url in (("arm", ask.base_url), ("reference", ask.reference_url))
        )
        return arm, reference
    assert ask.profile is not None
    if ask.reference_url is not None:
        raise InputError("--reference-url goes with --base-url; with --profile name a --baseline profile.")
    refuse_beside_profile(ask.model, ask.api_key_env, ask.api_key_file)
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
