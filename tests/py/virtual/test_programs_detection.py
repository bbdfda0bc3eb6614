"""Detection on a virtual GPU: torchvision's operators, loaded before and after it is installed, run by their fake
kernels."""

import pytest
from program_helpers import names_of, needs_virtual_gpu, run_all
from virtual_helpers import run

torchvision = pytest.importorskip("torchvision", reason="torchvision is not installed")
if not torchvision.extension._has_ops():
    pytest.skip("torchvision's operators cannot be loaded with this torch", allow_module_level=True)

pytestmark = needs_virtual_gpu


@pytest.fixture(scope="module")
def outcomes() -> dict[str, str]:
    return run_all("detection")


@pytest.mark.slow
@pytest.mark.parametrize("program", names_of("detection"))
def test_detection(outcomes: dict[str, str], program: str) -> None:
    assert outcomes[program] == "ok", outcomes[program]


def test_operators_that_were_loaded_before_run_too() -> None:
    run(
        """
        import torchvision
        assert torchvision.ops.nms(torch.rand(10, 4).cuda(), torch.rand(10).cuda(), 0.5).numel() == 5
        device.remove()
        assert torchvision.ops.nms(torch.tensor([[0.0, 0, 1, 1]]), torch.ones(1), 0.5).tolist() == [0]
        """
    )
