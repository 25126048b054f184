"""Start SGLang's server with the CPU's replacements in every one of its processes.

This is the main module, so every process that the server spawns runs it once more, as `__mp_main__`, before it
imports anything of sglang: each prepares itself (multiprocessing, "spawn": the child imports the parent's main).
"""

import os
import sys

from toolkit.lab.sglang_cpu import prepare


def serve(arguments: list[str]) -> None:
    """Serve until ended. `arguments` are those of sglang.launch_server; as it does, end all processes at the end."""
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    try:
        run_server(prepare_server_args(arguments))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ in ("__main__", "__mp_main__"):
    prepare()
if __name__ == "__main__":
    serve(sys.argv[1:])
