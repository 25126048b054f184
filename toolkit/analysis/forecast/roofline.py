"""What a forward pass should cost, from data sheets alone: a roofline over weights, KV cache and arithmetic.

    seconds = max(weights read / bandwidth, 2 x active parameters x new tokens / compute)
              + KV held / bandwidth + overhead

The two terms of the max overlap: a matrix product reads its weights while it multiplies. Attention comes after it in
every layer and is bound by reading the KV cache, so its time adds. Its own arithmetic is left out: a pass over m new
tokens of a request does m x (heads / KV heads) operations for a byte of KV in 16 bits, at m = 9 and four heads a KV
head 36, where machines balance at a hundred or more.

A prompt's pass counts the same way; its own attention, which grows with its square, is left out. One device: no tensor
parallelism.
Source of the method: Williams, Waterman, Patterson, "Roofline", CACM 52(4), 2009.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from toolkit.analysis.forecast.cost import Seconds, StepCost
from toolkit.launch.machines import Machine
from toolkit.launch.model_size import ModelSize

WEIGHTS = "memory bandwidth: weights"
KV_CACHE = "memory bandwidth: KV cache"
COMPUTE = "compute"
OVERHEAD = "overhead"
IN_FLIGHT = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)


@dataclass(frozen=True, slots=True)
class Roofline:
    """A `StepCost` that nobody measured: a machine, a target and, when there is one, a draft."""

    machine: Machine
    size: ModelSize
    draft_size: ModelSize | None = None

    @property
    def source(self) -> str:
        """See `StepCost`."""
        bandwidth, share = self.machine.bandwidth_gb_s, self.machine.bandwidth_efficiency
        return f"predicted from the data sheet of {self.machine.name} ({share:.0%} of {bandwidth:g} GB/s), not measured"

    @property
    def c(self) -> float | None:
        """Cost of one draft step over one target step, one token each and no context; None without a draft."""
        return self.draft(1, 0) / self.target(1, 0).seconds if self.draft_size else None

    def target(self, tokens: float, held: float) -> Seconds:
        """See `StepCost`."""
        return self._pass(self.size, tokens, held)

    def draft(self, tokens: float, held: float) -> float:
        """See `StepCost`."""
        return self._pass(self.draft_size, tokens, held).seconds if self.draft_size else 0.0

    def fits(self, held_per_request: float, drafting: bool) -> float | None:
        """See `StepCost`: the memory that weights leave, shared by the KV of target and draft.

        An upper bound: activations and graphs take room too. 0 when the weights alone do not fit.
        """
        if held_per_request <= 0:
            return None
        sizes = [self.size, *([self.draft_size] if self.draft_size and drafting else [])]
        room = self.machine.memory_gib * 2**30 * self.machine.memory_fraction - sum(size.weight_bytes for size in sizes)
        return max(0.0, room) / (held_per_request * sum(size.kv_bytes_per_token for size in sizes))

    def _pass(self, size: ModelSize, tokens: float, held: float) -> Seconds:
        machine = self.machine
        bandwidth = machine.bandwidth_gb_s * 1e9 * machine.bandwidth_efficiency
        rate = machine.tflops(size.arithmetic) * 1e12 * machine.compute_efficiency
        weights = size.read_bytes / bandwidth
        cache = held * size.kv_bytes_per_token / bandwidth
        compute = 2 * size.active_parameters * tokens / rate
        overhead = machine.step_overhead_ms / 1000
        terms = {WEIGHTS: weights, COMPUTE: compute, KV_CACHE: cache, OVERHEAD: overhead}
        return Seconds(max(weights, compute) + cache + overhead, max(terms, key=lambda limit: terms[limit]))


def step_curve(
    cost: StepCost, held_per_token: float = 0.0, tokens: Sequence[int] = IN_FLIGHT
) -> list[tuple[int, Seconds]]:
    """(tokens in flight, a pass of the target over them), each token with `held_per_token` tokens of context."""
    return [(count, cost.target(count, held_per_token * count)) for count in tokens]
