"""What this machine is, as far as a number can depend on it."""

import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil

from toolkit.engines.contract import is_secret

_MATTERS = (
    *("VLLM_", "SGLANG_", "CUDA_", "NVIDIA_", "NCCL_", "TORCH", "PYTORCH_", "OMP_", "MKL_", "KMP_", "LD_PRELOAD"),
    *("LLAMA_ARG_", "GGML_", "TOOLKIT_CPU_REPAIR"),
)


def hardware() -> dict[str, Any]:
    """Processor, cores, memory (GiB), GPUs with driver, system. What cannot be read is absent."""
    found: dict[str, Any] = {
        "cpu": _cpu_name(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "machine": platform.machine(),
        "system": platform.platform(),
        "python": platform.python_version(),
    }
    gpus = _gpus()
    return {**found, "gpus": gpus} if gpus else found


def environment() -> dict[str, str]:
    """The environment variables that can change a number. Nothing that looks like a secret."""
    return {
        name: value for name, value in sorted(os.environ.items()) if name.startswith(_MATTERS) and not is_secret(name)
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    names = {key.strip(): value.strip() for key, value in fields.items()}
    name = names.get("model name", platform.processor() or platform.machine())
    model = names.get("model")
    return f"{name} (family {names.get('cpu family')}, model {model})" if model else name


def _gpus() -> list[dict[str, str]]:
    if shutil.which("nvidia-smi") is None:
        return []
    fields = ("name", "memory.total", "driver_version")
    try:
        text = subprocess.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [dict(zip(fields, map(str.strip, line.split(",")), strict=False)) for line in text.splitlines() if line]
