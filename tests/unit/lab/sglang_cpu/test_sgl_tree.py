"""Draft trees, against what a tree means: parents, children in order, ancestors, the target's own path."""

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from toolkit.lab.sglang_cpu import tree


@dataclass
class Tree:
    """Node 0 is the root, -1 its parent; a node's number is above its parent's."""

    parents: list[int]

    @property
    def size(self) -> int:
        return len(self.parents)

    def ancestors(self, node: int) -> list[int]:
        found = []
        while node != -1:
            found.append(node)
            node = self.parents[node]
        return found

    def children(self, node: int) -> list[int]:
        return [child for child in range(self.size) if self.parents[child] == node]

    def first_child(self, node: int) -> int:
        return next(iter(self.children(node)), -1)

    def next_sibling(self, node: int) -> int:
        if node == 0:
            return -1
        return next((other for other in self.children(self.parents[node]) if other > node), -1)

    def mask(self) -> torch.Tensor:
        return torch.tensor([[j in self.ancestors(i) for j in range(self.size)] for i in range(self.size)])


@st.composite
def forests(draw: st.DrawFn) -> list[Tree]:
    """One to three trees of the same size."""
    size = draw(st.integers(2, 7))
    tree_of = st.tuples(*(st.integers(0, node - 1) for node in range(1, size)))
    return [Tree([-1, *draw(tree_of)]) for _ in range(draw(st.integers(1, 3)))]


LENGTHS = st.lists(st.integers(0, 9), min_size=3, max_size=3)


def table(forest: list[Tree]) -> torch.Tensor:
    return torch.full((len(forest), forest[0].size), -1, dtype=torch.int64)


def links(forest: list[Tree]) -> tuple[list[list[int]], list[list[int]]]:
    """The first children and next siblings that the trees have."""
    nodes = range(forest[0].size)
    return [[t.first_child(i) for i in nodes] for t in forest], [[t.next_sibling(i) for i in nodes] for t in forest]


def depths(forest: list[Tree], lengths: list[int]) -> list[int]:
    return [length + len(t.ancestors(i)) - 1 for t, length in zip(forest, lengths, strict=False) for i in range(t.size)]


@given(forests(), LENGTHS)
def test_a_mask_tells_links_and_positions(forest: list[Tree], lengths: list[int]) -> None:
    n = forest[0].size
    positions = torch.empty(len(forest) * n, dtype=torch.int64)
    index, child, sibling = table(forest), table(forest), table(forest)
    mask = torch.stack([t.mask() for t in forest]).flatten()
    seq_lens = torch.tensor(lengths[: len(forest)])
    tree.reconstruct_indices_from_tree_mask(mask, seq_lens, positions, index, child, sibling, len(forest), n)
    assert (child.tolist(), sibling.tolist()) == links(forest)
    assert positions.tolist() == depths(forest, lengths)
    assert index.flatten().tolist() == list(range(len(forest) * n))


@st.composite
def choices(draw: st.DrawFn) -> tuple[list[Tree], list[list[int]], list[list[int]], int]:
    """Trees as EAGLE scores them: topk children of the root, then topk drafts for each of topk nodes per level.

    Scored draft s lies under entry s // topk; entry e > 0 stands for the scored draft parent_list[e]. A chosen draft's
    parent is chosen too. Gives the trees, what was chosen, the lists of parents, and topk.
    """
    topk, levels, size = draw(st.integers(1, 3)), 3, draw(st.integers(2, 6))
    forest, chosen_of, lists = [], [], []
    for _ in range(draw(st.integers(1, 3))):
        parent_list = [-1]
        first, candidates = 0, list(range(topk))
        for _ in range(levels - 1):
            kept = sorted(draw(st.lists(st.sampled_from(candidates), min_size=topk, max_size=topk, unique=True)))
            first += len(candidates)
            parent_list += kept
            entries = range(len(parent_list) - topk, len(parent_list))
            candidates = [entry * topk + k for entry in entries for k in range(topk)]
        every = list(range(max(candidates) + 1))
        chosen: list[int] = []
        while len(chosen) < min(size - 1, topk):  # children of the root alone are always enough to begin with
            chosen.append(len(chosen))
        open_ones = [s for s in every if s not in chosen]
        while len(chosen) < size - 1:
            fit = [s for s in open_ones if s // topk == 0 or parent_list[s // topk] in chosen]
            if not fit:
                break
            taken = draw(st.sampled_from(fit))
            open_ones.remove(taken)
            chosen.append(taken)
        chosen.sort()
        node_of = {number: node for node, number in enumerate(chosen, start=1)}
        parents = [-1] + [0 if s // topk == 0 else node_of[parent_list[s // topk]] for s in chosen]
        forest.append(Tree(parents))
        chosen_of.append(chosen)
        lists.append(parent_list)
    smallest = min(t.size for t in forest)
    same_size = [i for i, t in enumerate(forest) if t.size == smallest]
    return [forest[i] for i in same_size], [chosen_of[i] for i in same_size], [lists[i] for i in same_size], topk


@given(choices(), LENGTHS, st.sampled_from([tree.FULL_MASK, tree.QLEN_ONLY]))
def test_the_chosen_drafts_become_a_tree(
    scored: tuple[list[Tree], list[list[int]], list[list[int]], int], lengths: list[int], mode: int
) -> None:
    forest, chosen, parent_list, topk = scored
    n, lengths = forest[0].size, lengths[: len(forest)]
    widths = [n + (length if mode == tree.FULL_MASK else 0) for length in lengths]
    mask = torch.ones(sum(n * width for width in widths), dtype=torch.bool)
    positions = torch.empty(len(forest) * n, dtype=torch.int64)
    index, child, sibling = table(forest), table(forest), table(forest)
    tree.build_tree_kernel_efficient_cpu(
        torch.tensor(parent_list), torch.tensor(chosen), torch.tensor(lengths), mask, positions, index, child, sibling,
        topk, 3, n, mode,
    )  # fmt: skip
    assert (child.tolist(), sibling.tolist()) == links(forest)
    assert positions.tolist() == depths(forest, lengths)
    assert index.flatten().tolist() == list(range(len(forest) * n))
    for t, width, block in zip(forest, widths, mask.split([n * width for width in widths]), strict=True):
        rows = block.view(n, width)
        assert rows[:, : width - n].all()
        assert rows[:, width - n :].tolist() == t.mask().tolist()


def test_a_chain_is_the_tree_of_one_draft_per_level() -> None:
    """The tables that BaseSpecWorker._rebuild_topk1_chain_buffers keeps for topk 1 and four steps."""
    index, child, sibling = (torch.full((1, 5), -1) for _ in range(3))
    mask, positions = torch.ones(25, dtype=torch.bool), torch.empty(5, dtype=torch.int64)
    tree.build_tree_kernel_efficient_cpu(
        torch.tensor([[-1, 0, 1, 2]]), torch.tensor([[0, 1, 2, 3]]), torch.tensor([7]), mask, positions, index, child,
        sibling, 1, 4, 5, tree.QLEN_ONLY,
    )  # fmt: skip
    assert positions.tolist() == [7, 8, 9, 10, 11]
    assert child.tolist() == [[1, 2, 3, 4, -1]]
    assert sibling.tolist() == [[-1] * 5]
    assert mask.view(5, 5).tolist() == torch.ones(5, 5).tril().bool().tolist()


def test_a_bit_packed_mask_is_refused() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    with pytest.raises(NotImplementedError, match="bit-packed"):
        tree.build_tree_kernel_efficient_cpu(*([nothing] * 8), 1, 1, 2, 2)


@given(forests(), st.data(), st.integers(2, 7))
def test_verification_keeps_what_the_target_would_have_written(
    forest: list[Tree], data: st.DataObject, longest: int
) -> None:
    n, few = forest[0].size, st.integers(0, 2)
    rows = st.lists(st.lists(few, min_size=n, max_size=n), min_size=len(forest), max_size=len(forest))
    tokens, target = data.draw(rows), data.draw(rows)
    predicts = torch.full((len(forest) * n,), -9, dtype=torch.int32)
    accepted = torch.full((len(forest), longest), -1, dtype=torch.int32)
    kept = torch.empty(len(forest), dtype=torch.int32)
    child, sibling = links(forest)
    tree.verify_tree_greedy_cpu(
        predicts, accepted, kept, torch.tensor(tokens), torch.arange(len(forest) * n).view(-1, n),
        torch.tensor(child), torch.tensor(sibling), torch.tensor(target),
    )  # fmt: skip
    for b, t in enumerate(forest):
        node, path = 0, [0]
        while len(path) < longest:
            right = [c for c in t.children(node) if tokens[b][c] == target[b][node]]
            if not right:
                break
            node = right[0]
            path.append(node)
        assert kept[b] == len(path) - 1
        assert accepted[b].tolist() == [b * n + node for node in path] + [-1] * (longest - len(path))
        written = [predicts[b * n + node].item() for node in range(n)]
        assert written == [target[b][node] if node in path else -9 for node in range(n)]
