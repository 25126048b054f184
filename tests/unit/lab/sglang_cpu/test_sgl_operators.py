"""Where sglang finds the replacement. In a process of its own: what is installed stays installed."""

import subprocess
import sys


def run(code: str, *interpreter: str) -> str:
    done = subprocess.run([sys.executable, *interpreter, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


INSTALL = "from toolkit.lab.sglang_cpu.operators import install; install(); install(); import torch\n"


def test_the_names_that_sglang_imports_are_there() -> None:
    run(
        INSTALL
        + "from sgl_kernel import (assign_draft_cache_locs_contiguous_cpu, assign_extend_cache_locs_cpu,"
        + "assign_req_to_token_pool_cpu, build_draft_decode_metadata_cpu, build_tree_kernel_efficient_cpu,"
        + "copy_all_layer_kv_cache_cpu, fill_accept_out_cache_loc_cpu, fill_bonus_tokens_cpu, rotate_input_ids_cpu,"
        + "verify_tree_greedy_cpu)\n"
        + "from sgl_kernel.speculative import reconstruct_indices_from_tree_mask\n"
        + "import importlib.util; assert importlib.util.find_spec('sgl_kernel')"
    )


def test_attention_is_an_operator_that_writes_its_output() -> None:
    assert (
        run(
            INSTALL
            + "o = torch.zeros(1, 1, 2); keys = torch.zeros(3, 1, 2); values = torch.zeros(3, 1, 2)\n"
            + "torch.ops.sgl_kernel.decode_attention_cpu(torch.ones(1, 1, 2), keys, values, 1.0, 1.0, o,"
            + "torch.ones(1, 1, 2), torch.full((1, 1, 2), 5.0), torch.tensor([2]), torch.empty(0),"
            + "torch.tensor([[2]], dtype=torch.int32), torch.tensor([0]), torch.tensor([1]),"
            + "1.0, 0.0, False, 0, None, None)\n"
            + "print(o.flatten().tolist(), values[2].flatten().tolist())"
        )
        == "[5.0, 5.0] [5.0, 5.0]"
    )


def test_the_compiled_kernels_are_not_claimed() -> None:
    """cpu_has_amx_support() asks for this one; with it sglang would call kernels that are not ours."""
    assert run(INSTALL + "print(hasattr(torch.ops.sgl_kernel, 'convert_weight_packed'))") == "False"


def test_an_operation_of_other_methods_says_so() -> None:
    code = "import sgl_kernel\ntry: sgl_kernel.rotate_input_ids_cpu(1, select=2)\n"
    assert "no rotate_input_ids_cpu" in run(INSTALL + code + "except NotImplementedError as error: print(error)")


def test_the_package_alone_imports_no_torch() -> None:
    assert run("import sys, toolkit.lab.sglang_cpu; print('torch' in sys.modules)") == "False"
