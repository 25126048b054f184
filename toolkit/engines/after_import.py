"""Change a module of someone else right after it is imported, without importing it for that."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Change = Callable[[Any], None]


def when_imported(name: str, change: Change) -> None:
    """Call `change` with the module `name`: now, if it is imported, else as soon as it is.

    A second change of the same module follows the first. The same change of it is asked for once.
    """
    if name in sys.modules:
        change(sys.modules[name])
        return
    watch = next((finder for finder in sys.meta_path if isinstance(finder, _Watch)), None)
    if watch is None:
        watch = _Watch()
        sys.meta_path.insert(0, watch)
    changes = watch.waiting.setdefault(name, [])
    if change not in changes:
        changes.append(change)


class _Watch(MetaPathFinder):
    """Finds no module itself: lets the others find it, and adds the changes to the end of its execution."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Change]] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in self.waiting:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            changes, run = self.waiting[fullname], spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                run(module)
                for change in changes:
                    change(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
