"""What a machine can do, as a prediction needs it: `configs/hardware/*.yaml`, one file a machine, with its sources."""

import difflib
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from toolkit.errors import InputError
from toolkit.launch.profile import configs_folder


class Compute(BaseModel):
    """Dense matrix products with 32-bit sums, TFLOPS by arithmetic; absent where there is none or none to rely on."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    bf16: float = Field(gt=0)
    fp8: float | None = Field(None, gt=0)
    fp4: float | None = Field(None, gt=0)


class Machine(BaseModel):
    """One device: what its data sheet promises, and how much of that engines are seen to get."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    description: str = Field(min_length=1)
    bandwidth_gb_s: float = Field(gt=0, description="memory bandwidth of the data sheet, 10^9 bytes a second")
    compute_tflops: Compute
    memory_gib: float = Field(gt=0, description="what the driver reports, 2^30 bytes")
    memory_fraction: float = Field(gt=0, le=1, description="share that an engine takes unless told otherwise")
    bandwidth_efficiency: float = Field(gt=0, le=1, description="share of the bandwidth that a pass gets")
    compute_efficiency: float = Field(gt=0, le=1, description="share of the compute that a pass gets")
    step_overhead_ms: float = Field(ge=0, description="of every pass, beside reading and computing")
    sources: list[str] = Field(min_length=1, description="`field: where from`; says so when derived or assumed")

    def tflops(self, arithmetic: str) -> float:
        """Peak of `arithmetic`; that of bf16 where the machine has none of it, as weight-only kernels do."""
        rates = {"fp8": self.compute_tflops.fp8, "fp4": self.compute_tflops.fp4}
        return rates.get(arithmetic) or self.compute_tflops.bf16


def shipped_machines() -> dict[str, Path]:
    """Name to file of the machines that come with the toolkit, sorted by name."""
    return {path.stem: path for path in sorted((configs_folder() / "hardware").glob("*.yaml"))}


def load_machine(name: str) -> Machine:
    """The machine `name`: a shipped name or a path to a YAML file.

    Raises InputError for a file that is missing or malformed, for an unknown key, a missing or impossible value.
    """
    path = _find(name)
    try:
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except OSError as error:
        raise InputError(f"machine {name[:80]}: cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: is not UTF-8 text.") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise InputError(f"{path}:{line}: not valid YAML: {error.problem}.") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InputError(f"{path}: not valid YAML: {error}.") from None
    if node is None or not isinstance(values, dict):
        raise InputError(f"{path}: a machine is a mapping of keys; {', '.join(shipped_machines())} are examples.")
    try:
        return Machine.model_validate({**values, "name": path.stem})
    except ValidationError as error:
        raise InputError("\n".join(f"{path}:{_explain(dict(one), node)}" for one in error.errors())) from None


def _find(name: str) -> Path:
    if name.endswith((".yaml", ".yml")) or "/" in name:
        return Path(name)
    shipped = shipped_machines()
    if name in shipped:
        return shipped[name]
    near = difflib.get_close_matches(name, shipped, n=1)
    hint = f" Did you mean {near[0]}?" if near else f" There are {', '.join(shipped)}."
    raise InputError(f"there is no machine {name[:80]!r}.{hint} A path to a .yaml file works too.")


def _explain(one: dict[str, Any], node: yaml.Node) -> str:
    """Line, key and what would be right."""
    keys: tuple[str | int, ...] = one["loc"]
    dotted = ".".join(map(str, keys))
    if one["type"] == "missing":
        return f"{_line(node, keys)}: the key {dotted!r} is missing."
    if one["type"] == "extra_forbidden":
        fields = (Compute if keys[0] == "compute_tflops" else Machine).model_fields
        known = [field for field in fields if field != "name"]
        near = difflib.get_close_matches(str(keys[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"known here: {', '.join(known)}."
        return f"{_line(node, keys)}: unknown key {dotted!r}: {hint}"
    return f"{_line(node, keys)}: {dotted}: {one['msg']} (given: {str(one['input'])[:80]!r})."


def _line(node: yaml.Node, keys: tuple[str | int, ...]) -> int:
    """1-based line of the deepest of `keys` that the file holds."""
    line = 1
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        found = next(((k, v) for k, v in pairs if k.value == str(key)), None)
        if found is None:
            break
        line, node = found[0].start_mark.line + 1, found[1]
    return line
