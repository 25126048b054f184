"""A third fault of vLLM 0.32 on a CPU: a seeded request at temperature above 0 whose prompt takes more than one pass.

Such a pass samples a token that is thrown away, and the request's generator is set back by what that drew, so that its
seed gives the same tokens however the prompt was cut. The runner does it with the generator's offset
(v1/worker/gpu_model_runner.py, _bookkeeping_sync), which a CPU's generator has not: the engine dies with "CPU Generator
does not use offset". Here its state is kept before sampling and put back after it: the same, and no token changes.
"""

from typing import Any


def mend(module: Any) -> None:
    """Mend the runner in `module`, vllm.v1.worker.cpu_model_runner, once."""
    runner = module.CPUModelRunner
    if "_sample" in vars(runner):
        return
    sample, keep_books = runner._sample, runner._bookkeeping_sync

    def _sample(self: Any, *given: Any, **named: Any) -> Any:
        before = {row: generator.get_state() for row, generator in _set_back(self).items()}
        sampled = sample(self, *given, **named)
        for row, state in before.items():
            self.input_batch.generators[row].set_state(state)
        return sampled

    def _bookkeeping_sync(self: Any, *given: Any, **named: Any) -> Any:
        """The books without those generators: they are set back already."""
        aside = _set_back(self)
        for row in aside:
            del self.input_batch.generators[row]
        try:
            return keep_books(self, *given, **named)
        finally:
            self.input_batch.generators.update(aside)

    runner._sample, runner._bookkeeping_sync = _sample, _bookkeeping_sync


def _set_back(runner: Any) -> dict[int, Any]:
    """The generators, by row of the batch, of the requests whose token of this pass is thrown away."""
    batch = runner.input_batch
    thrown_away = runner.discard_request_mask.np[: batch.num_reqs].nonzero()[0]
    return {int(row): batch.generators[int(row)] for row in thrown_away if int(row) in batch.generators}
