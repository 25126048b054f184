"""The house: rooms import downward only, no module imports itself by a detour, and the base needs no engine."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "toolkit"
# cli -> {analysis, launch, lab} -> engines -> {proposers, theory, sampling}; terminal beside cli, errors under all.
FLOORS = [
    {"cli", "terminal", "__main__"},
    {"analysis", "launch", "lab"},
    {"engines"},
    {"proposers", "theory", "sampling"},
    {"errors", "__init__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
FORBIDDEN_NAMES = {"utils", "helpers", "common", "base", "misc", "util"}
HEAVY = ["vllm", "torch", "transformers", "sglang"]
# The stand-in for SGLang's compiled kernels is loaded by SGLang's own processes only; the package itself stays light.
KERNELS = {f"toolkit.lab.sglang_cpu.{name}" for name in ("tree", "cache", "attention", "operators")}


def modules() -> dict[str, Path]:
    """Dotted name to file of every module of the package."""
    names = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        names[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return names


MODULES = modules()


@cache
def parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text(encoding="utf-8"))


def walk(node: ast.AST, at_import_time: bool) -> Iterator[ast.AST]:
    """The nodes below `node`, those inside functions and `if TYPE_CHECKING` left out `at_import_time`."""
    for child in ast.iter_child_nodes(node):
        yield child
        typing = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if not at_import_time or not (typing or isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef))):
            yield from walk(child, at_import_time)


def imports(name: str, at_import_time: bool = False) -> Iterator[str]:
    """The modules of the package that `name` imports, also inside functions unless `at_import_time`."""
    for node in walk(parsed(name), at_import_time):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in MODULES else str(node.module)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def edges(at_import_time: bool = False) -> dict[str, set[str]]:
    """Module to the modules of the package that it imports."""
    return {name: {found for found in imports(name, at_import_time) if found in MODULES} for name in MODULES}


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def upward(graph: Mapping[str, set[str]]) -> list[str]:
    """The edges that go from a lower floor to a higher one."""
    return [
        f"{above} imports {below}"
        for above, found in graph.items()
        for below in sorted(found)
        if FLOOR[room(below)] < FLOOR[room(above)]
    ]


def test_every_room_has_its_floor() -> None:
    assert {room(module) for module in MODULES} <= set(FLOOR)


def test_imports_run_downward() -> None:
    assert upward(edges()) == []


def test_an_upward_import_would_be_named() -> None:
    assert upward({"toolkit.engines.vllm": {"toolkit.launch.server"}}) == [
        "toolkit.engines.vllm imports toolkit.launch.server"
    ]


def test_launch_does_not_know_analysis() -> None:
    found = [(a, b) for a, below in edges().items() if room(a) == "launch" for b in below]
    assert [edge for edge in found if room(edge[1]) == "analysis"] == []


def test_proposers_know_no_other_room() -> None:
    """They run inside someone else's engine process."""
    found = [(a, b) for a, below in edges().items() if room(a) == "proposers" for b in below]
    assert [edge for edge in found if room(edge[1]) not in ("proposers", "theory", "sampling", "errors")] == []


def test_no_module_imports_itself_by_a_detour() -> None:
    try:
        TopologicalSorter(edges(at_import_time=True)).prepare()
    except CycleError as error:
        pytest.fail(f"a circle: {' -> '.join(reversed(error.args[1]))}")


@pytest.mark.parametrize("name", MODULES)
def test_a_module_is_named_for_what_it_does(name: str) -> None:
    assert name.rpartition(".")[2] not in FORBIDDEN_NAMES


def test_the_command_line_starts_without_an_engine() -> None:
    code = f"import toolkit.cli, sys; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) != "proposers" and name not in KERNELS])
def test_no_module_imports_an_engine_when_it_is_imported(name: str) -> None:
    assert [found for found in imports(name, at_import_time=True) if found.partition(".")[0] in HEAVY] == []


def test_only_the_kernels_themselves_import_the_kernels() -> None:
    found = {a for a, below in edges(at_import_time=True).items() if below & KERNELS}
    assert found <= KERNELS
