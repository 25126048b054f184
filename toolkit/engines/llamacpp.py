"""llama.cpp: profile to the argv of its `llama-server`, its responses and /metrics to our counts. Facts are of b11434.

Sources in the engine: common/arg.cpp (arguments), common/speculative.cpp and common/ngram-map.cpp (who drafts how
many), tools/server/server-context.cpp (post_decode counts a step before its tokens are sent, and before an end mark
trims them), tools/server/server-task.cpp (responses, names on /metrics), tools/server/server-common.cpp (timings).
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from toolkit.engines.contract import Command, Counters, KnownFailure, Profile, SpecCounts
from toolkit.engines.gguf import GGUFFacts, read_gguf
from toolkit.engines.llamacpp_counts import RunningCounts
from toolkit.engines.llamacpp_speculation import GGUF, speculation_arguments
from toolkit.engines.metrics import Page
from toolkit.errors import EngineError, InputError

SERVER_VARIABLE = "LLAMA_SERVER"
_NO_PROBABILITIES = "llama.cpp gives no probabilities of tokens that come from a step with a draft (post_decode)"
_NOT_HERE = f"no llama-server is here: `make lab-llamacpp` builds one, or name yours in {SERVER_VARIABLE}."
_VOCABULARY_SLACK = 128  # tokens by which llama.cpp lets vocabularies differ (SPEC_VOCAB_MAX_SIZE_DIFFERENCE)

_KNOWN_FAILURES = (
    KnownFailure(r"llama-server cannot be started", _NOT_HERE[0].upper() + _NOT_HERE[1:]),
    KnownFailure(r"couldn't bind HTTP server socket", "The port is taken: choose another with --set server.port=N."),
    KnownFailure(
        r"error: invalid argument: --spec|unknown speculative type",
        "This llama-server is too old or too new for its speculative arguments: b11434 is known to work, "
        "`make lab-llamacpp` builds it.",
    ),
    KnownFailure(
        r"error: invalid argument|error while handling argument",
        "llama-server does not take one of the arguments: see engine_args and speculation.options.",
    ),
    KnownFailure(
        r"draft model vocab type must match|vocabs are not compatible",
        "Target and draft have different vocabularies: choose a draft of the same family.",
    ),
    KnownFailure(
        r"failed to allocate|Cannot allocate memory|std::bad_alloc|out of memory|failed to create context",
        "There is not enough memory: the cache is limits.max_model_len times limits.max_num_seqs tokens; lower one.",
    ),
    KnownFailure(
        r"failed to open GGUF file|failed to load model|invalid magic|unknown model architecture",
        "The model could not be read: check target.model and speculation.draft, which must be GGUF files.",
    ),
)


class LlamaCpp:
    """The adapter of llama.cpp's `llama-server`.

    Passes are exact for models whose cache can drop single tokens, as those of attention alone; a recurrent or hybrid
    model verifies a draft that was kept in part a second time, which no response tells.
    """

    name = "llamacpp"
    known_failures: Sequence[KnownFailure] = _KNOWN_FAILURES
    key_variable: str | None = "LLAMA_API_KEY"
    owners = frozenset({"llamacpp"})
    version_at: tuple[str, str] | None = ("/props", "build_info")
    greedy_on: frozenset[str] = frozenset()
    not_under_speculation: Mapping[str, str] = dict.fromkeys(("n_probs", "top_logprobs"), _NO_PROBABILITIES)

    def command(self, profile: Profile, resolve: Callable[[str], str]) -> Command:
        """argv of llama-server: `llama-server` itself where none is found, so that the command can be shown anywhere.

        `-c` is the cache of all slots together and each gets its share, so it is max_model_len times max_num_seqs.
        """
        _refuse_foreign(profile)
        limits, target = profile.limits, resolve(GGUF + profile.target.model)
        assert limits.max_model_len is not None
        assert limits.max_num_seqs is not None
        found = find_server()
        argv = [str(found or "llama-server"), "-m", target, "--alias", profile.served_model]
        argv += ["--host", profile.server.host, "--port", str(profile.server.port)]
        argv += ["-c", str(limits.max_model_len * limits.max_num_seqs), "-np", str(limits.max_num_seqs)]
        argv += ["--no-kv-unified", "--metrics", *(["--device", "none"] if profile.device == "cpu" else [])]
        if limits.max_num_batched_tokens is not None:
            argv += ["-b", str(limits.max_num_batched_tokens)]
        filled_in: tuple[str, ...] = ()
        if profile.speculation:
            arguments, filled_in = speculation_arguments(profile.speculation, resolve)
            argv += arguments
        argv += profile.engine_args
        return Command(tuple(argv), _environment(profile), filled_in=filled_in, precision=_precision(target))

    def installed_version(self) -> str | None:
        server = find_server()
        return None if server is None else _version(server, server.stat().st_mtime_ns)

    def scheduling(self, profile: Profile) -> str | None:
        return None

    def schedule_refusal(self, profile: Profile) -> str | None:
        return "llama.cpp drafts as many tokens at every load: it has no schedule of K"

    def check(self, profile: Profile, configs: Callable[[str], str]) -> list[str]:
        """What llama-server's own parser says, and what it would only say, or do in silence, with the models loaded.

        It has no dry run: with --help it parses every argument first, and reads no model.
        """
        what, server = self.command(profile, lambda name: name), find_server()
        if server is None:
            raise EngineError(_NOT_HERE)
        done = subprocess.run(
            [str(server), *what.argv[1:], "--help"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60,
        )
        if done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith("error") or "unknown" in line]
            return [(said or done.stderr.splitlines() or ["llama-server refuses the arguments"])[0].strip()]
        draft = profile.speculation.draft if profile.speculation else None
        return _mismatches(profile, *(_facts(name, configs) for name in (profile.target.model, draft) if name))

    def request_fields(self) -> dict[str, Any]:
        return {"timings_per_token": True}

    def chunk_tokens(self, chunk: dict[str, Any]) -> int | None:
        """None: a chunk tells the tokens so far, in `SpecCounts.tokens`."""
        return None

    def prompt_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        """None: chat responses of llama.cpp carry no token ids, of the prompt or of the answer."""
        return None

    def answer_ids(self, chunk: dict[str, Any]) -> list[int] | None:
        return None

    def spec_counts(self, chunk: dict[str, Any]) -> SpecCounts | None:
        """The totals so far. `draft_n` is left out while nothing was drafted, so without it that is what is known."""
        timings = chunk.get("timings")
        if not isinstance(timings, Mapping):
            return None
        tokens, drafted = timings.get("predicted_n"), timings.get("draft_n", 0)
        accepted = timings.get("draft_n_accepted", 0)
        if not all(type(one) is int for one in (tokens, drafted, accepted)):
            return None
        return RunningCounts(None, drafted, accepted, tokens=tokens)

    def passes(self, completion_tokens: int, chunk_sizes: Sequence[int], counts: SpecCounts) -> tuple[int, int] | None:
        """Exact where the chunks told every step. Else completion - accepted, and more by what an end mark trimmed."""
        if counts.passes is not None:
            return counts.passes, counts.passes
        low = completion_tokens - counts.accepted
        return (max(low, 1), low + counts.accepted) if counts.accepted else (low, low)

    def counters(self, page: str) -> Counters:
        """All but the decodes and the two gauges grow when a request ends: a window of requests in flight misses some.

        Its three totals of drafts are there, as zeros, on a server that cannot draft as well.
        """
        metrics = Page(page)
        by_position = metrics.by_label("llamacpp:spec_decode_num_accepted_tokens_per_pos_total", "position")
        return Counters(
            iterations=metrics.total("llamacpp:n_decode_total"),
            generation_tokens=metrics.total("llamacpp:tokens_predicted_total"),
            drafts=metrics.total("llamacpp:spec_decode_num_drafts_total"),
            drafted=metrics.total("llamacpp:spec_decode_num_draft_tokens_total"),
            accepted=metrics.total("llamacpp:spec_decode_num_accepted_tokens_total"),
            accepted_per_position=[by_position[key] for key in sorted(by_position, key=int)],
            cached_tokens=metrics.total("llamacpp:prompt_tokens_cached_total"),
            running=metrics.total("llamacpp:requests_processing"),
            waiting=metrics.total("llamacpp:requests_deferred"),
            zero_drafts_tell=False,
        )


def lab_server(environment: Mapping[str, str] = os.environ) -> Path:
    """Where `make lab-llamacpp` puts its llama-server, built or not."""
    cache_home = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache_home / "toolkit" / "llama.cpp" / "llama-server"


def find_server(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The llama-server to run: LLAMA_SERVER, else the one on PATH, else the lab's build; None when there is none.

    Raises InputError when LLAMA_SERVER names none.
    """
    if named := environment.get(SERVER_VARIABLE):
        found = shutil.which(Path(named).expanduser(), path=environment.get("PATH"))
        if found is None:
            raise InputError(f"{SERVER_VARIABLE}={named}: there is no such program; `make lab-llamacpp` builds one.")
        return Path(found).absolute()
    on_path = shutil.which("llama-server", path=environment.get("PATH"))
    if on_path is not None:
        return Path(on_path).absolute()
    built = lab_server(environment)
    return built if os.access(built, os.X_OK) and built.is_file() else None


@cache
def _version(server: Path, changed: int) -> str | None:
    """As /props says it: `b11434-commit`. `changed` tells one build at the same place from the next."""
    command = [str(server), "--version"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.search(
        r"version: .*\(build (\d+), commit ([^)\s]+)\)|version: (\d+) \(([^)\s]+)\)", done.stdout + done.stderr
    )
    return f"b{found[1] or found[3]}-{found[2] or found[4]}" if found else None


def _refuse_foreign(profile: Profile) -> None:
    """Raises InputError for what llama.cpp has not, or knows by another name."""
    target, limits = profile.target, profile.limits
    for wrong, said in (
        (profile.container is not None, "container: only a llama-server of this machine is launched"),
        (target.revision is not None, "target.revision: a GGUF file is what it is, it has no revisions"),
        (target.quantization is not None, "target.quantization: a GGUF file is quantized as it was made; name another"),
        (target.dtype != "auto", f"target.dtype {target.dtype}: a GGUF file holds its own; leave it at auto"),
        (limits.tensor_parallel > 1, "limits.tensor_parallel: llama.cpp splits a model by --split-mode (engine_args)"),
        (limits.memory_fraction is not None, "limits.memory_fraction: llama.cpp takes what it needs, see -ngl"),
        (limits.kv_cache_gib is not None, "limits.kv_cache_gib: its cache is max_model_len times max_num_seqs tokens"),
        (limits.max_model_len is None, "limits.max_model_len is needed: llama.cpp lays its cache out by it"),
        (limits.max_num_seqs is None, "limits.max_num_seqs is needed: llama.cpp lays its cache out by it"),
    ):
        if wrong:
            raise InputError(f"profile {profile.name}: {said}.")


def _environment(profile: Profile) -> dict[str, str]:
    """The profile's, and of ours what would make acceptance synthetic, so that it is written down with the arm."""
    env = {name: value for name, value in os.environ.items() if name.startswith("LLAMA_ARG_SPEC_SYNTH")}
    if profile.limits.eager and profile.device == "gpu":
        env["GGML_CUDA_DISABLE_GRAPHS"] = "1"
    return {**env, **profile.environment}


def _precision(target: str) -> str | None:
    """What the weights are stored in, as the file says; None where it is not here."""
    try:
        return read_gguf(Path(target)).file_type
    except InputError:
        return None


def _facts(name: str, configs: Callable[[str], str]) -> GGUFFacts:
    """Of a GGUF file, or of the lab's model by the config.json that was made from its file."""
    if name.endswith(".gguf"):
        return read_gguf(Path(name).expanduser())
    if not name.startswith("lab/"):
        raise InputError(f"model {name}: llama.cpp takes a GGUF file of this machine, as a path that ends in .gguf.")
    config = json.loads((Path(configs(name)) / "config.json").read_text(encoding="utf-8"))
    return GGUFFacts(vocabulary=config.get("vocab_size"), context=config.get("max_position_embeddings"))


def _mismatches(profile: Profile, target: GGUFFacts, draft: GGUFFacts | None = None) -> list[str]:
    """Lengths that llama.cpp would cut in silence, vocabularies that it would refuse."""
    found, asked = [], profile.limits.max_model_len
    if asked and target.context and asked > target.context:
        found.append(f"limits.max_model_len {asked} is longer than the {target.context} that the model was made for.")
    sizes = target.vocabulary, draft.vocabulary if draft else None
    if sizes[0] and sizes[1] and abs(sizes[0] - sizes[1]) > _VOCABULARY_SLACK:
        found.append(f"target and draft have vocabularies of {sizes[0]} and {sizes[1]} tokens.")
    return found
