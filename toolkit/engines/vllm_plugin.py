"""What we change inside vLLM: the entry point `vllm.general_plugins`, run in every engine process. Cheap, idempotent.

It makes layer skip known to vLLM (vllm_layer_skip.py), and marks our proposer as registered, so that its first log
line, written in the worker that drafts, tells whether this ran there too (`VLLM_PLUGINS` may leave it out, a container
may hold the code without the entry point): then the repair below is in place as well. vLLM finds the class of prompt
lookup by its path alone.

Two faults of vLLM 0.32 on a CPU under speculation at temperature above 0 (a third is told in vllm_seeds.py):

- It emits garbage. `_expand_kernel_impl` (vllm/utils/cpu_triton_utils.py) hands its C++ kernel an int64 *copy* of
  `output` whenever that has another type, and never copies it back, so that temperature, top-k and top-p of the
  verified rows are whatever the memory held. Workers load plugins before they put that function in the place of the
  Triton kernel (v1/worker/worker_base.py, init_worker; platforms/cpu.py): it is enough to replace it in its module.
- With top-k alone it dies ("max(): Expected reduction dim") in any step in which no request has a draft to verify:
  `apply_top_k_only` (v1/sample/ops/topk_topp_sampler.py) takes the maximum over no rows. That is always mended, since
  it changes no token.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from toolkit import proposers
from toolkit.engines import vllm_seeds
from toolkit.engines.after_import import when_imported
from toolkit.engines.vllm_layer_skip import register_layer_skip

if TYPE_CHECKING:
    import torch

SWITCH = "TOOLKIT_CPU_REPAIR"
"""Environment variable; 0 leaves the garbage, to be audited."""
AFFECTED = ("0.32.",)
"""Beginnings of the versions that were seen to be broken."""


def register() -> None:
    """The entry point. What it mends is mended on a CPU with an affected version alone."""
    from vllm.platforms import current_platform
    from vllm.version import __version__

    proposers.registered = True
    register_layer_skip(__version__)
    if current_platform.is_cpu() and __version__.startswith(AFFECTED):
        _mend_top_k()
        when_imported("vllm.v1.worker.cpu_model_runner", vllm_seeds.mend)
        if wants_repair(os.environ):
            _repair()


def wants_repair(environment: Mapping[str, str]) -> bool:
    """Whether sampling is to be repaired."""
    return environment.get(SWITCH, "1") != "0"


def expand(
    output: "torch.Tensor",
    input_val: "torch.Tensor",
    cu_num_tokens: "torch.Tensor",
    replace_from: float,
    replace_to: float,
    MAX_NUM_TOKENS: Any = None,  # noqa: N803 - the kernel's own keyword
) -> None:
    """Fill `output` [tokens] with each request's value of `input_val` [requests], as often as it has tokens.

    `cu_num_tokens` [requests] is cumulative. `replace_from` becomes `replace_to`: a greedy request's temperature 0
    becomes 1. The contract is that of `expand_kernel` in vllm/v1/sample/rejection_sampler.py.
    """
    import torch

    counts = torch.diff(cu_num_tokens, prepend=cu_num_tokens.new_zeros(1)).to(torch.int64)
    values = torch.where(input_val == replace_from, torch.full_like(input_val, replace_to), input_val)
    output.copy_(values.repeat_interleave(counts))


@dataclass(frozen=True, slots=True)
class OfAnyRows:
    """`top_k_only(logits [rows, vocabulary], k [rows])`, of no rows too."""

    top_k_only: "Callable[[torch.Tensor, torch.Tensor], torch.Tensor]"

    def __call__(self, logits: "torch.Tensor", k: "torch.Tensor") -> "torch.Tensor":
        return self.top_k_only(logits, k) if len(k) else logits


def _mend_top_k() -> None:
    from vllm.v1.sample.ops import topk_topp_sampler

    if not isinstance(topk_topp_sampler.apply_top_k_only, OfAnyRows):
        topk_topp_sampler.apply_top_k_only = OfAnyRows(topk_topp_sampler.apply_top_k_only)


def _repair() -> None:
    from vllm.logger import init_logger
    from vllm.utils import cpu_triton_utils

    if cpu_triton_utils._expand_kernel_impl is expand:
        return
    cpu_triton_utils._expand_kernel_impl = expand
    init_logger("vllm.toolkit").info(
        "speculative-toolkit repairs sampling at temperature > 0 under speculation on this CPU build (%s=0 leaves it)",
        SWITCH,
    )
