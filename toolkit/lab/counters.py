"""The /metrics page of `toolkit lab serve`, under vLLM's names (vllm/v1/metrics/loggers.py)."""

from contextlib import AbstractContextManager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from toolkit.lab.answer import Job, Piece

ITERATION_BUCKETS = (1, 2, 4, 8, 16, 32, 64)  # tokens


class Page:
    """Counts since the server began. An iteration is a pass of the target; `k` is None without speculation."""

    def __init__(self, model: str, k: int | None) -> None:
        self._registry = CollectorRegistry()
        self._labels = {"engine": "0", "model_name": model}
        self._running = self._gauge("num_requests_running", "Requests whose turn it is: one or none.")
        self._waiting = self._gauge("num_requests_waiting", "Requests in the queue.")
        self._prompt = self._counter("prompt_tokens", "Prompt tokens.")
        self._generated = self._counter("generation_tokens", "Tokens of answers.")
        self._iterations = Histogram(
            "vllm:iteration_tokens_total",
            "Tokens of answers per pass of the target.",
            list(self._labels),
            buckets=ITERATION_BUCKETS,
            registry=self._registry,
        ).labels(**self._labels)
        self._k = k
        if k is not None:
            self._drafts = self._counter("spec_decode_num_drafts", "Steps with a draft.")
            self._drafted = self._counter("spec_decode_num_draft_tokens", "Draft tokens.")
            self._accepted = self._counter("spec_decode_num_accepted_tokens", "Draft tokens kept.")
            by_position = Counter(
                "vllm:spec_decode_num_accepted_tokens_per_pos",
                "Draft tokens kept, by position.",
                [*self._labels, "position"],
                registry=self._registry,
            )
            self._kept = [by_position.labels(**self._labels, position=str(position)) for position in range(k)]

    def text(self) -> bytes:
        """The page in the exposition format."""
        return generate_latest(self._registry)

    def waiting(self) -> AbstractContextManager[object]:
        """For the time that a request is in the queue."""
        return self._waiting.track_inprogress()

    def running(self, job: Job) -> AbstractContextManager[object]:
        """For the time that it is the turn of `job`."""
        self._prompt.inc(len(job.prompt))
        return self._running.track_inprogress()

    def add(self, piece: Piece) -> None:
        self._generated.inc(len(piece.tokens))
        self._iterations.observe(len(piece.tokens))
        if self._k is not None and piece.drafted:
            self._drafts.inc()
            self._drafted.inc(piece.drafted)
            self._accepted.inc(piece.accepted)
            for position in self._kept[: piece.accepted]:
                position.inc()

    def _gauge(self, name: str, says: str) -> Gauge:
        return Gauge(f"vllm:{name}", says, list(self._labels), registry=self._registry).labels(**self._labels)

    def _counter(self, name: str, says: str) -> Counter:
        return Counter(f"vllm:{name}", says, list(self._labels), registry=self._registry).labels(**self._labels)
