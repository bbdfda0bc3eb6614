"""Operators that are not torch's own, which nobody here knows, run by their fake kernels whenever they are
registered."""

import pathlib
import shutil
import subprocess

import pytest
from modscope._virtual.operators.unknown import KernelError, unknown_kernel
from virtual_helpers import needs_interception, run

import torch

pytestmark = needs_interception

SOURCE = r"""
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>
at::Tensor for_cuda(const at::Tensor &x)
{
    TORCH_CHECK(false, "the kernel ran");
}
at::Tensor for_meta(const at::Tensor &x)
{
    return at::empty({2 * x.size(0)}, x.options());
}
TORCH_LIBRARY(unknown_extension, m)
{
    m.def("doubled(Tensor x) -> Tensor");
    m.def("secret(Tensor x) -> Tensor");
}
TORCH_LIBRARY_IMPL(unknown_extension, CUDA, m)
{
    m.impl("doubled", for_cuda);
    m.impl("secret", for_cuda);
}
TORCH_LIBRARY_IMPL(unknown_extension, Meta, m)
{
    m.impl("doubled", for_meta);
}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_operators_of_a_library_in_cpp(tmp_path: pathlib.Path) -> None:
    (tmp_path / "extension.cpp").write_text(SOURCE)
    folder = pathlib.Path(torch.__file__).parent
    includes = [f"-I{folder / 'include'}", f"-I{folder / 'include/torch/csrc/api/include'}"]
    command = ["c++", "-shared", "-fPIC", "-O0", "-std=c++20", *includes, "extension.cpp", "-o", "extension.so"]
    subprocess.run([*command, f"-L{folder / 'lib'}", "-ltorch_cpu", "-lc10"], cwd=tmp_path, check=True)
    run(
        f"""
        torch.ops.load_library({str(tmp_path / "extension.so")!r})
        x = torch.ones(4, device="cuda")
        assert torch.ops.unknown_extension.doubled(x).shape == (8,)
        refused = error(torch.ops.unknown_extension.secret, x)
        assert refused.startswith("KernelError: unknown_extension::secret is a CUDA kernel of an extension"), refused
        device.remove()
        assert "NotImplementedError" in error(torch.ops.unknown_extension.doubled, torch.ones(4))
        """
    )


def test_fake_kernels_may_ask_for_sizes() -> None:
    run(
        """
        library = torch.library.Library("unknown_python", "DEF")
        library.define("some(Tensor x, int most) -> Tensor")
        library.impl("some", lambda x, most: 1 / 0, "CUDA")

        @torch.library.register_fake("unknown_python::some")
        def _(x, most):
            return x.new_empty(torch.library.get_ctx().new_dynamic_size(min=3, max=most))

        x = torch.ones(100, 2, device="cuda")
        assert torch.ops.unknown_python.some(x, 1000).shape == (50,)  # half of them, as a mask selects
        assert torch.ops.unknown_python.some(x, 40).shape == (40,)
        assert torch.ops.unknown_python.some(x[:2], 1000).shape == (3,)
        """
    )


def test_kernels_that_are_registered_again_are_replaced_again_and_stay_in_the_end() -> None:
    run(
        """
        library = torch.library.Library("unknown_python", "DEF")
        library.define("like(Tensor x) -> Tensor")
        library.impl("like", lambda x: x.new_empty(2), "Meta")
        x = torch.ones(100, device="cuda")
        with torch.library._scoped_library("unknown_python", "IMPL") as first:
            first.impl("like", lambda x: 1 / 0, "CUDA")
            assert torch.ops.unknown_python.like(x).shape == (2,)
        with torch.library._scoped_library("unknown_python", "IMPL", "CUDA") as second:
            second.impl("like", lambda x: 1 / 0)
            assert torch.ops.unknown_python.like(x).shape == (2,)
            device.remove()
            computed = torch._C._dispatch_dump("unknown_python::like")
            assert computed.count("CUDA:") == 1, computed
        """
    )


# ---- errors of kernels of which nothing is known ----


def test_the_error_of_an_operator_of_torch_says_what_to_do() -> None:
    error = unknown_kernel("aten::mystery")
    assert isinstance(error, KernelError) and "what aten::mystery returns" in str(error)
    assert "Compute the result with other operators of PyTorch, or report the operator" in str(error)


def test_the_error_of_an_extension_names_the_fake_kernel() -> None:
    assert "torch.library.register_fake" in str(unknown_kernel("mine::kernel"))
