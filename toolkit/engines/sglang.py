"""SGLang: profile to argv, its responses and /metrics to our counts. Facts are of version 0.5.23.

Sources in the engine, all under sglang/srt/: arg_groups/fields/ and arg_groups/speculative_hook.py (arguments),
managers/scheduler_components/batch_result_processor.py (which counts a pass once it is verified, before a stop trims
it; the prefill is not among them), managers/tokenizer_manager.py (its ratios), entrypoints/openai/serving_chat.py (what
a stream tells, and that it refuses return_token_ids and return_meta_info), observability/metrics_collector.py.

SGLang takes the key that it asks of its clients from `--api-key` or from the file of `--config`, never from the
environment. An argv is read by everyone on the machine, so a profile cannot give one: write `api-key: ...` into a file
that only you can read, pass `--config FILE` under engine_args, and name the key's variable with --api-key-env.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from toolkit.engines.contract import Command, Counters, KnownFailure, Profile, SpecCounts
from toolkit.engines.metrics import Page
from toolkit.engines.sglang_python import LAB_MISSING, find_lab_python, launch_python, version_in
from toolkit.engines.sglang_speculation import NO_SCHEDULE, speculative_arguments
from toolkit.errors import EngineError, InputError

RUNNING_REQUESTS = 48
"""What speculation lowers SGLang's default to (speculative_hook.py): given in both arms if a profile says nothing."""

_LOG_EVERY = 10  # decode steps between two readings of its gauges; SGLang's 40 can miss a short answer's whole life
_RETRACTIONS = 3  # more of one request than that are not believed: its counts are wrong
_OWN_RATIOS = ("spec_accept_rate", "spec_accept_length")
_ON_A_CPU = ["--device", "cpu", "--sampling-backend", "pytorch", "--skip-server-warmup"]

_KNOWN_FAILURES = (
    KnownFailure(
        r"access (a )?gated repo|GatedRepoError|403 Client Error",
        "The model is gated: accept its licence on its hub page, then set HF_TOKEN in the environment.",
    ),
    KnownFailure(r"address already in use|Errno 98", "The port is taken: choose another with --set server.port=N."),
    KnownFailure(
        r"Not enough memory\. Please try to increase --mem-fraction-static|increase --mem-fraction-static",
        "The weights leave no room for the KV cache: raise limits.memory_fraction, or lower limits.max_model_len.",
    ),
    KnownFailure(
        r"out of memory|OutOfMemoryError|Cannot allocate memory|MemoryError|std::bad_alloc|DefaultCPUAllocator|Killed",
        "There is not enough memory: stop what else uses it, or lower limits.memory_fraction, limits.max_num_seqs or "
        "limits.max_model_len (on unified memory, free the page cache first).",
    ),
    KnownFailure(
        r"is greater than the derived context_length",
        "limits.max_model_len is longer than the target or its draft was made for: lower it, or for a draft's sake set "
        'environment.SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN to "1".',
    ),
    KnownFailure(
        r"no kernel image is available|sm_121|ptxas",
        "This build of SGLang has no kernels for the GPU: on a DGX Spark use lmsysorg/sglang:latest-cu130.",
    ),
    KnownFailure(
        r"No accelerator \(CUDA|Found no NVIDIA driver|No CUDA GPUs are available|libcuda\.so\.1|"
        r"NVIDIA driver .* too old",
        "No usable NVIDIA driver was found: install or update it, or serve a profile with `device: cpu`.",
    ),
    KnownFailure(
        r"Repository Not Found|401 Client Error|is not a valid model identifier|LocalEntryNotFoundError|"
        r"couldn't connect to|does not appear to have a file named",
        "The model could not be fetched: check target.model (and speculation.draft) for typing errors, the network, "
        "or give a local folder.",
    ),
    KnownFailure(
        r"unrecognized arguments: .*--speculative",
        "This SGLang has no such argument: see speculation.options, or use the version that the toolkit was made for.",
    ),
    KnownFailure(
        r"No module named '?sglang",
        "SGLang is not installed in that Python: `pip install 'speculative-toolkit[sglang]'`, or set SGLANG_PYTHON to "
        "the python of an environment that has it.",
    ),
)


class SGLang:
    """The adapter of SGLang's HTTP server."""

    name = "sglang"
    known_failures: Sequence[KnownFailure] = _KNOWN_FAILURES
    key_variable: str | None = None
    owners = frozenset({"sglang"})
    version_at: tuple[str, str] | None = ("/server_info", "version")
    greedy_on: frozenset[str] = frozenset({"cpu"})  # _verify_uses_greedy in srt/speculative/eagle_utils.py
    not_under_speculation: Mapping[str, str] = {
        "min_p": "SGLang verifies by temperature, top_k and top_p alone and ignores min_p (eagle_sample in "
        "srt/speculative/eagle_utils.py)"
    }

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        """argv and environment of the server; on a CPU the lab's launcher, which supplies the kernels that it lacks.

        Raises InputError for what SGLang has no word for, and for a CPU where the lab's environment is missing.
        """
        _refuse_foreign(profile)
        limits, target = profile.limits, profile.target
        argv = [*_server(profile), "--model-path", resolve(target.model)]
        argv += ["--served-model-name", profile.served_model]
        argv += ["--host", profile.server.host, "--port", str(profile.server.port)]
        argv += ["--dtype", target.dtype]
        for flag, value in (
            ("--revision", target.revision),
            ("--quantization", target.quantization),
            ("--context-length", limits.max_model_len),
            ("--max-running-requests", limits.max_num_seqs or RUNNING_REQUESTS),
            ("--mem-fraction-static", limits.memory_fraction if profile.device == "gpu" else None),
            ("--tp-size", limits.tensor_parallel if limits.tensor_parallel > 1 else None),
        ):
            if value is not None:
                argv += [flag, str(value)]
        argv += ["--enable-metrics", "--decode-log-interval", str(_LOG_EVERY)]
        argv += _ON_A_CPU if profile.device == "cpu" else []
        argv += ["--disable-cuda-graph"] if limits.eager or profile.device == "cpu" else []
        argv += speculative_arguments(profile.speculation, resolve) if profile.speculation else []
        environment = {"SGLANG_USE_CPU_ENGINE": "1"} if profile.device == "cpu" else {}
        told = () if limits.max_num_seqs else (f"limits.max_num_seqs {RUNNING_REQUESTS}, in both arms",)
        return Command((*argv, *profile.engine_args), {**environment, **profile.environment}, profile.container, told)

    def installed_version(self) -> str | None:
        """Of this Python, else of the lab's environment or the one that SGLANG_PYTHON names."""
        return version_in(launch_python()) or version_in(find_lab_python())

    def scheduling(self, profile: Profile) -> str | None:
        """By speculative_hook.py: speculation on a CPU loses the overlap of scheduling and passes."""
        off = any(argument.startswith("--disable-overlap-s") for argument in profile.engine_args)
        speculates_on_cpu = profile.device == "cpu" and profile.speculation is not None
        return "synchronous" if off or speculates_on_cpu else "asynchronous"

    def schedule_refusal(self, profile: Profile) -> str | None:
        return "it does not speculate" if profile.speculation is None else NO_SCHEDULE

    def check(self, profile: Profile, configs: Callable[[str], str]) -> list[str]:
        """What SGLang's own ServerArgs say, in a Python that has it. A container's arguments are checked with ours."""
        from toolkit.engines.sglang_check import problems

        python = find_lab_python() if profile.device == "cpu" else launch_python() or find_lab_python()
        if python is None:
            raise EngineError(
                "SGLang is in no Python known here, so its arguments cannot be asked: `make lab-sglang` builds one in "
                "a checkout; or set SGLANG_PYTHON to the python of an environment that has it."
            )
        what = self.command(profile, configs)
        return problems(python, what.argv, profile.device, what.env)

    def request_fields(self) -> dict[str, Any]:
        """Counts and ids come in one chunk without choices at the end; tokens so far with every chunk."""
        return {
            "stream_options": {"include_usage": True, "continuous_usage_stats": True},
            "return_spec_tokens_details": True,
            "return_input_ids_in_sglext": True,
            "return_output_ids_in_sglext": True,
        }

    def chunk_tokens(self, chunk: dict[str, Any]) -> int | None:
        """Never told per chunk: its `usage` counts the tokens so far, whose differences the client takes."""
        return None

    def prompt_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        ids = _extension(chunk).get("input_ids")
        return ids if isinstance(ids, list) else None

    def answer_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        """All at once, in the chunk at the end; None for several answers to one request."""
        ids = _extension(chunk).get("output_ids")
        return ids[0] if isinstance(ids, list) and len(ids) == 1 and isinstance(ids[0], list) else None

    def spec_counts(self, chunk: dict[str, Any]) -> SpecCounts | None:
        """From `sglext.spec_tokens_details`, or `meta_info` of a choice that was not streamed.

        `spec_verify_ct` are the passes after the prefill, each of which verifies a draft. The draft always has
        `--speculative-num-draft-tokens` minus 1 tokens: NGRAM fills up what it did not find with the token 0, which
        is sent to verification too, so its `drafted` and `steps` hold passes that vLLM's n-gram would not draft in.
        None for an answer of one token, which no pass followed.
        """
        found = _extension(chunk).get("spec_tokens_details") or _meta_info(chunk)
        names = ("spec_verify_ct", "spec_num_proposed_drafts", "spec_num_correct_drafts")
        if not isinstance(found, dict) or not all(type(found.get(name)) is int for name in names):
            return None
        steps, drafted, accepted = (found[name] for name in names)
        if steps < 1 or drafted < 1:
            return None
        histogram = found.get("spec_correct_drafts_histogram")
        fits = isinstance(histogram, list) and sum(histogram) == steps
        return SpecCounts(
            steps=steps,
            drafted=drafted,
            accepted=accepted,
            num_speculative_tokens=drafted // steps if drafted % steps == 0 else None,
            accepted_histogram=histogram if fits else None,
            own={name: found[name] for name in _OWN_RATIOS if isinstance(found.get(name), (int, float))},
        )

    def passes(self, completion_tokens: int, chunk_sizes: Sequence[int], counts: SpecCounts) -> tuple[int, int] | None:
        """Target passes of one request: the prefill and the verified ones, exactly, for every pass drafts.

        completion = passes + accepted - overshoot, where the overshoot is what a stop or max_tokens trimmed off the
        last pass: at most what a pass kept. Where more tokens came than these passes yield, the request was retracted
        and prefilled again, once for each token too many, and the overshoot makes bounds of it. None when neither
        explains the tokens: the counts are wrong (sglang#13754 counted 0 accepted in passes of 4 tokens).
        """
        passes = 1 + (counts.steps or 0)
        kept = counts.accepted_histogram
        most = len(kept) - 1 if kept else min(counts.num_speculative_tokens or counts.accepted, counts.accepted)
        overshoot = passes + counts.accepted - completion_tokens
        if overshoot < 0:
            again = -overshoot
            return (passes + again, passes + again + most) if again <= _RETRACTIONS else None
        return (passes, passes) if overshoot <= most else None

    def counters(self, page: str) -> Counters:
        """Iterations as they happen; tokens, verified passes and cached tokens when a request ends.

        `sglang:cuda_graph_passes_total` counts every batch, prefill or decode, in a graph or not
        (process_batch_result_decode, report_prefill_stats). Accepted drafts are not counted: the `sglang:spec_accept_`
        length and rate are gauges over the passes since the last log line, so acceptance needs the responses.
        Retractions and cached tokens have no series before the first of them: none beside the gauge that is always
        there is 0. Before the first request has ended a page does not tell whether the server speculates, so it tells
        no iterations either.
        """
        metrics = Page(page)
        kv_tokens = metrics.total("sglang:max_total_num_tokens")
        generated = metrics.total("sglang:generation_tokens_total")
        none_yet = None if kv_tokens is None else 0.0
        return Counters(
            iterations=None if generated is None else metrics.total("sglang:cuda_graph_passes_total"),
            generation_tokens=generated,
            preemptions=metrics.total("sglang:num_retracted_requests_total") or none_yet,
            drafts=metrics.total("sglang:spec_verify_calls_total"),
            cached_tokens=metrics.total("sglang:cached_tokens_total") or none_yet,
            running=metrics.total("sglang:num_running_reqs"),
            waiting=metrics.total("sglang:num_queue_reqs"),
            kv_tokens=kv_tokens,
        )


def _server(profile: Profile) -> list[str]:
    if profile.container is not None:
        return ["python3", "-m", "sglang.launch_server"]
    if profile.device == "gpu":
        return [launch_python() or "python3", "-m", "sglang.launch_server"]
    lab = find_lab_python()
    if lab is None:
        raise InputError(f"profile {profile.name}: {LAB_MISSING}")
    return [lab, "-m", "toolkit.lab.sglang_cpu"]


def _refuse_foreign(profile: Profile) -> None:
    speculative = next((one for one in profile.engine_args if one.startswith("--speculative")), None)
    for wrong, said in (
        (
            speculative is not None,
            f"engine_args: {speculative} belongs under speculation, SGLang's own words under speculation.options: half "
            "of them there and half here would not be the draft that is measured",
        ),
        (
            profile.limits.kv_cache_gib is not None,
            "limits.kv_cache_gib: SGLang counts its cache in tokens. Set it to null for sglang (under by_engine) and "
            "give engine_args [--max-total-tokens, N]",
        ),
        (
            profile.limits.max_num_batched_tokens is not None,
            "limits.max_num_batched_tokens: SGLang bounds the prefill's tokens alone. Set it to null for sglang (under "
            "by_engine) and give engine_args [--chunked-prefill-size, N]",
        ),
        (
            profile.device == "cpu" and profile.container is not None,
            "container: on a CPU SGLang runs with the lab's kernels, in the environment of `make lab-sglang`",
        ),
    ):
        if wrong:
            raise InputError(f"profile {profile.name}: {said}.")


def _extension(chunk: dict[str, Any]) -> dict[str, Any]:
    found = chunk.get("sglext")
    return found if isinstance(found, dict) else {}


def _meta_info(chunk: dict[str, Any]) -> Any:
    choices = chunk.get("choices")
    return choices[0].get("meta_info") if choices else None
