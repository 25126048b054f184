"""`python -m toolkit.lab.sglang_cpu`: run `serve` as the main module.

SGLang's processes are spawned, and a spawned process first runs its parent's main module again, as `__mp_main__`,
unless that is called `__main__` (multiprocessing.spawn._fixup_main_from_name). So the main module must be `serve`.
"""

import runpy

runpy.run_module("toolkit.lab.sglang_cpu.serve", run_name="__main__", alter_sys=True)
