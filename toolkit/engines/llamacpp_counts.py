"""From the running totals in llama-server's chunks to the steps and passes of a request. Facts are of b11434.

Sources in the engine: tools/server/server-context.cpp (post_decode counts a step before its tokens are sent, and before
an end mark trims them; process_token holds back what is no whole text), tools/server/server-common.cpp (timings).
"""

from dataclasses import dataclass, replace

from toolkit.engines.contract import SpecCounts


@dataclass(frozen=True, slots=True)
class RunningCounts(SpecCounts):
    """The totals that a chunk carries. Only their differences tell steps: see `following`.

    A request's first token is one pass, the prefill's. `draft_n` and `draft_n_accepted` grow before a step's first
    token is sent, so where one new token shows after those of all passes before, it is a pass of its own, and carried
    a draft if `draft_n` grew. A chunk that shows more than one (half a character, or what may become a stop word, is
    held back) after a draft leaves open how many steps there were: `steps` and `passes` are then unknown.
    """

    def following(self, earlier: SpecCounts | None) -> SpecCounts:
        before = earlier or SpecCounts(0, 0, 0, per_step_drafted=[], per_step_accepted=[], passes=1, tokens=0)
        steps = _steps(before)
        if steps is None or before.passes is None or before.tokens is None or self.tokens is None:
            return self
        fresh = max(0, self.tokens - before.passes - before.accepted)  # tokens that no pass so far has made
        drafted, accepted = self.drafted - before.drafted, self.accepted - before.accepted
        if drafted or accepted:
            if fresh != 1 or not 0 <= accepted <= drafted:
                return self
            steps = [*steps, (drafted, accepted)]
        return replace(
            self,
            steps=len(steps),
            per_step_drafted=[one for one, _ in steps],
            per_step_accepted=[one for _, one in steps],
            passes=before.passes + fresh,
        )


def _steps(counts: SpecCounts) -> list[tuple[int, int]] | None:
    if counts.per_step_drafted is None or counts.per_step_accepted is None:
        return None
    return list(zip(counts.per_step_drafted, counts.per_step_accepted, strict=True))
