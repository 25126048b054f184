"""The real SGLang server on any CPU: what it needs there and no package brings.

`python -m toolkit.lab.sglang_cpu <the arguments of sglang.launch_server>` in `.venv-sglang` (`make lab-sglang`).
`tree`, `cache` and `attention` are the operations that speculation calls, in plain PyTorch, written from the calls in
sglang 0.5.23; `operators` puts them in the place of the compiled `sgl_kernel`; `serve` starts the server. On a CPU
SGLang verifies drafts greedily and ignores the temperature: compare at temperature 0.
"""

import os


def prepare() -> None:
    """Make this process fit to import sglang: call it first. Idempotent; imports torch and nothing of the server.

    Sets, where the environment does not: SGLANG_USE_CPU_ENGINE=1, one OpenMP thread, and a core to bind it to, which
    spares SGLang the search for NUMA nodes (only the compiled kernels would bind it).
    """
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("SGLANG_CPU_OMP_THREADS_BIND", str(max(os.sched_getaffinity(0))))

    from toolkit.lab.sglang_cpu.operators import install

    install()
    from sglang.srt.runtime_context import override_platform

    # Only the "intel_amx" attention verifies drafts, and arguments resolve to it where the CPU has AMX. Its kernels
    # are ours, which need no AMX; all else asks cpu_has_amx_support(), which stays False without the compiled kernel.
    override_platform(has_amx=True).install()
