"""What is asked: a Workload gives the prompt of any index, from a seeded generator or from a file of prompts."""

import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from hashlib import sha256
from pathlib import Path

from toolkit.analysis.datasets import Prompt as Prompt
from toolkit.analysis.datasets import read_dataset
from toolkit.analysis.generators import GENERATOR_VERSION, LOAD_ONLY, WRITERS, write
from toolkit.errors import InputError


@dataclass(frozen=True, slots=True)
class Workload:
    """A numbered sequence of prompts.

    `digest` (64 hex digits) changes whenever any prompt could change. `size` is the number of prompts in a file;
    None is a generator, which never repeats one. `make` gives the prompt of an index below `size`. `random` prompts are
    no language: they do for load, and say nothing of acceptance or speedup.
    """

    name: str
    digest: str
    size: int | None
    make: Callable[[int], Prompt]
    random: bool = False

    def prompt(self, index: int) -> Prompt:
        """The prompt of `index` (0 or more; ValueError below), the same each time. A file starts again after `size`."""
        if index < 0:
            raise ValueError(f"a prompt index is 0 or more, not {index}")
        return self.make(index if self.size is None else index % self.size)


def load_workload(name_or_path: str, seed: int = 0) -> Workload:
    """A shipped workload by name (`seed` picks its prompts), or a file by path (`seed` has no effect): see `datasets`.

    Raises InputError: no such workload, a file that cannot be read or holds no prompt, a malformed line (`file:line`).
    """
    if name_or_path in WRITERS or name_or_path in LOAD_ONLY:
        name, identity = name_or_path, json.dumps([name_or_path, seed, GENERATOR_VERSION])
        digest = sha256(identity.encode()).hexdigest()
        return Workload(name, digest, None, partial(_generated, name, seed), random=name in LOAD_ONLY)
    # os.path.exists, not Path.exists: the latter raises on a name too long for the file system.
    if name_or_path.endswith((".jsonl", ".json")) or os.path.exists(name_or_path):
        path = Path(name_or_path)
        found = read_dataset(path)
        return Workload(path.stem, found.digest, len(found.prompts), partial(_stored, found.prompts), found.random)
    nearest = get_close_matches(name_or_path.lower(), WRITERS, n=1, cutoff=0.0)[0]
    raise InputError(
        f"no workload named {name_or_path!r}. Did you mean {nearest}? "
        f"The shipped workloads are {', '.join(WRITERS)}; a path to a .jsonl file of prompts works too, and "
        f"{', '.join(LOAD_ONLY)} for load only"
    )


def in_language(workload: Workload, what: str) -> Workload:
    """`workload` as it is. Raises InputError where its prompts are random: `what` they would say nothing of."""
    if workload.random:
        raise InputError(
            f"the prompts of {workload.name} are random, they are for load only: {what} depends on what is asked. "
            f"Choose prompts of your own traffic, or one of {', '.join(WRITERS)}."
        )
    return workload


def _generated(name: str, seed: int, index: int) -> Prompt:
    text, category = write(name, seed, index)
    return Prompt(({"role": "user", "content": text},), category)


def _stored(prompts: tuple[Prompt, ...], index: int) -> Prompt:
    # A copy: a caller that edits the dicts it was given must not change what the next one gets.
    return Prompt(tuple(dict(message) for message in prompts[index].messages), prompts[index].category)
