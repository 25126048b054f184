"""Draft trees: building one, checking one against the target, and reading one out of its mask.

A tree of n nodes per request is drafted; node 0 is the root, the last token that the target itself chose. It is
stored as three tables [requests, n], all of int64, -1 for "none": `retrieve_index` (row of the node in the flattened
batch), `next_token` (first child) and `next_sibling`. A mask row says which nodes a node attends to: its ancestors
and itself. With one draft per level (`topk` 1, and NGRAM with a breadth of 1) the tree is a chain.

The names of the arguments are those of the calls in sglang 0.5.23, kernels/ops/speculative/spec_tree.py and
reconstruct_tree.py; `retrive_*` is spelled so there.
"""

import torch

FULL_MASK, QLEN_ONLY = 0, 1  # TreeMaskMode in spec_tree.py


def build_tree_kernel_efficient_cpu(
    parent_list: torch.Tensor,
    selected_index: torch.Tensor,
    verified_seq_len: torch.Tensor,
    tree_mask: torch.Tensor,
    positions: torch.Tensor,
    retrieve_index: torch.Tensor,
    retrieve_next_token: torch.Tensor,
    retrieve_next_sibling: torch.Tensor,
    topk: int,
    depth: int,
    draft_token_num: int,
    tree_mask_mode: int,
) -> None:
    """Write the tree of the chosen drafts into the last five tensors. spec_tree.py, build_tree_kernel_efficient_func.

    `selected_index` [requests, n-1] numbers the chosen drafts, ascending, among all that were scored; draft s is a
    child of entry s // topk of `parent_list` [requests, entries], which holds the number of the parent draft, and
    entry 0 is the root. `verified_seq_len` [requests]. The two link tables come filled with -1. `positions`
    [requests * n] becomes the place of each node in its text: the text's length + the node's depth.

    `tree_mask` (bool, flat) in mode QLEN_ONLY is [requests, n, n]; in mode FULL_MASK each request has a block
    [n, its length + n], the part before the drafts left as it is. Raises NotImplementedError for bit-packed masks.
    """
    if int(tree_mask_mode) not in (FULL_MASK, QLEN_ONLY):
        raise NotImplementedError("the CPU lab builds no bit-packed tree masks")
    n, begin = draft_token_num, 0
    for b, length in enumerate(verified_seq_len.tolist()):
        parents = _parents(selected_index[b].tolist(), parent_list[b].tolist(), topk)
        attends = [[False] * n for _ in range(n)]
        for node in range(n):
            if node:
                attends[node] = list(attends[parents[node]])
            attends[node][node] = True
            positions[b * n + node] = length + sum(attends[node]) - 1
            retrieve_index[b, node] = b * n + node
        for node in range(n - 1, 0, -1):  # backwards, so that the first child ends up first
            retrieve_next_sibling[b, node] = retrieve_next_token[b, parents[node]]
            retrieve_next_token[b, parents[node]] = node
        width = n if int(tree_mask_mode) == QLEN_ONLY else length + n
        block = tree_mask[begin : begin + n * width].view(n, width)
        block[:, width - n :] = torch.tensor(attends, dtype=tree_mask.dtype)
        begin += n * width


def _parents(selected: list[int], parent_list: list[int], topk: int) -> list[int]:
    """The parent of each node of one tree, the root's being -1."""
    node_of = {number: node for node, number in enumerate(selected, start=1)}
    parents = [-1]
    for number in selected:
        entry = number // topk
        parents.append(0 if entry == 0 else node_of[parent_list[entry]])
    return parents


def verify_tree_greedy_cpu(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Walk each tree along the target's own choices; write the first three. spec_tree.py, verify_tree_greedy_func.

    `candidates` [requests, n] are the tokens of the nodes, `target_predict` [requests, n] what the target would write
    after each. From the root on, the child that holds the target's token is kept, until there is none.
    `accept_index` [requests, the most kept + 1], filled with -1 before, gets the rows of root and kept nodes;
    `accept_token_num` [requests] the number of kept drafts; `predicts` [requests * n], at the row of each node of
    that path, the token that follows it: the kept drafts and then the target's own, which comes free.
    """
    longest = accept_index.shape[1]
    rows, following = retrive_index.tolist(), target_predict.flatten().tolist()
    tokens, children, siblings = candidates.tolist(), retrive_next_token.tolist(), retrive_next_sibling.tolist()
    for b in range(len(tokens)):
        node, path = 0, [rows[b][0]]
        while len(path) < longest:
            wanted, child = following[path[-1]], children[b][node]
            while child != -1 and tokens[b][child] != wanted:
                child = siblings[b][child]
            if child == -1:
                break
            node = child
            path.append(rows[b][node])
        accept_index[b, : len(path)] = torch.tensor(path, dtype=accept_index.dtype)
        accept_token_num[b] = len(path) - 1
        predicts[path] = torch.tensor([following[row] for row in path], dtype=predicts.dtype)


def reconstruct_indices_from_tree_mask(
    tree_mask: torch.Tensor,
    verified_seq_len: torch.Tensor,
    positions: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    batch_size: int,
    draft_token_num: int,
) -> None:
    """Write `positions` [requests * n] and the three tables of the trees that `tree_mask` describes.

    `tree_mask` [requests * n * n] (bool, flat): node j is an ancestor of node i, or i itself; ancestors have the lower
    numbers. `verified_seq_len` [requests]. reconstruct_tree.py, reconstruct_indices_from_tree_mask_func, says this
    contract in words.
    """
    n = draft_token_num
    ancestors = torch.tril(tree_mask.view(batch_size, n, n).to(torch.int64), diagonal=-1)
    depth = ancestors.sum(-1)
    positions.copy_((depth + verified_seq_len.view(-1, 1)).flatten())
    retrive_index.copy_(torch.arange(batch_size * n).view(batch_size, n))
    number = torch.arange(n)
    # The parent is the last of the ancestors: the largest number, -1 for a node without any.
    parents = torch.where(ancestors.bool(), number, -1).amax(-1)
    later = number.view(n, 1) > number  # [k, i]: k comes after i
    child_of = (parents.unsqueeze(-1) == number) & later
    sibling_of = (parents.unsqueeze(-1) == parents.unsqueeze(1)) & later & (parents >= 0).unsqueeze(1)
    for table, relation in ((retrive_next_token, child_of), (retrive_next_sibling, sibling_of)):
        first = torch.where(relation, number.view(n, 1), n).amin(1)
        table.copy_(torch.where(first < n, first, -1))
