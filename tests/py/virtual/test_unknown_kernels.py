"""The errors of kernels of which nothing is known."""

from modscope._virtual.operators.unknown import KernelError, unknown_kernel


def test_the_error_of_an_operator_of_torch_says_what_to_do() -> None:
    error = unknown_kernel("aten::mystery")
    assert isinstance(error, KernelError) and "what aten::mystery returns" in str(error)
    assert "Compute the result with other operators of PyTorch, or report the operator" in str(error)


def test_the_error_of_an_extension_names_the_fake_kernel() -> None:
    assert "torch.library.register_fake" in str(unknown_kernel("mine::kernel"))
