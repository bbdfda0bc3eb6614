"""`modscope.virtual_gpu` in code. Each program runs in a process of its own: autograd counts devices at its first
backward."""

import modscope
import pytest
from predict_helpers import needs_virtual_gpu, predict, run_python

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

BEGIN = """
import torch, modscope
from torch import nn
def train(steps=2):
    model = nn.Sequential(nn.Linear(1024, 1024), nn.Linear(1024, 1024)).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        model(torch.ones(64, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def run(text: str) -> list[str]:
    import textwrap

    return run_python(BEGIN + textwrap.dedent(text))


def test_after_stop_the_gpu_is_there_and_counts_no_more(tmp_path):
    """Nor is it the default device after its end, though it was left as that."""
    out = run("""
        with modscope.virtual_gpu("h100") as gpu:
            torch.set_default_device("cuda")
            train()
            gpu.stop()
            before = gpu.peak_allocated
            torch.empty(1 << 20, device="cuda").sum()
            torch.cuda.synchronize()
            gpu.stop()
            print(gpu.peak_allocated == before > 0, len(gpu.capture.peaks))
        print(torch.ones(2).device, gpu.peak_allocated == before)
        torch.set_default_device("meta")
        with modscope.virtual_gpu("h100") as gpu:
            torch.ones(3, device="cuda")
        print(torch.ones(2).device)
    """)
    assert out == ["True 2", "cpu True", "meta"]


def test_what_it_tells(tmp_path):
    out = run(f"""
        with modscope.virtual_gpu("h100", path={str(tmp_path / "x.msc")!r}) as gpu:
            train()
            inside = torch.cuda.max_memory_reserved(), torch.cuda.max_memory_allocated(), torch.cuda.get_device_name()
        print(inside == (gpu.peak_reserved, gpu.peak_allocated, "NVIDIA H100 80GB HBM3"), gpu.fits, 0 < gpu.step_ms < 100)
        print(gpu.capture.info["gpu"], gpu.capture.last_step, gpu.result["steps"], sorted(gpu.capture.peaks))
        print(gpu.peak_reserved == gpu.capture.reserved["cuda:0"], torch.cuda.is_available(), repr(gpu).startswith("<virtual_gpu h100: reserves "))
    """)
    assert out == ["True True True", "h100 2 2 ['cpu', 'cuda:0']", "True False True"]
    assert modscope.load(tmp_path / "x.msc").info["source"] == "predicted"


def test_peaks_that_the_program_resets_are_kept():
    out = run("""
        with modscope.virtual_gpu("h100") as gpu:
            x = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
            del x
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            y = torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
        print(gpu.peak_allocated, gpu.peak_reserved)
    """)
    assert out == [f"{1 << 30} {1 << 30}"]


def test_one_after_the_other_and_one_by_its_memory():
    out = run("""
        for name in ("h100", 2 << 30, "3GiB"):
            with modscope.virtual_gpu(name) as gpu:
                train()
                try:
                    torch.empty(7 << 28, dtype=torch.uint8, device="cuda")
                except torch.OutOfMemoryError:
                    pass
            print(gpu.fits, gpu.gpu.memory >> 30)
    """)
    assert out == ["True 79", "False 2", "True 3"]


def test_an_exception_leaves_torch_as_it_was():
    out = run("""
        before = torch.compile, torch.cuda.is_available, torch.distributed.init_process_group, torch.library.Library.impl
        try:
            with modscope.virtual_gpu("2GiB") as gpu:
                model = nn.Linear(10, 10).cuda()
                torch.empty(1 << 40, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError as error:
            print(error.__notes__[0].splitlines()[0])
        after = torch.compile, torch.cuda.is_available, torch.distributed.init_process_group, torch.library.Library.impl
        print(before == after, gpu.fits, gpu.result["ended"], gpu.result["out_of_memory"]["requested"] == 1 << 40)
        try:
            torch.ones(1, device="cuda")
        except (AssertionError, RuntimeError):
            print("no GPU")
    """)
    report = (
        "[modscope] out of memory: an allocation of 1.00 TiB on cuda:0 failed, before the first step, "
        "outside any module"
    )
    assert out == [report, "True False exception True", "no GPU"]


def test_wrong_uses():
    out = run("""
        def tried(function):
            try:
                function()
            except (RuntimeError, ValueError, FileExistsError) as error:
                print(error)
        gpu = modscope.virtual_gpu("h100")
        tried(lambda: gpu.fits)
        with gpu:
            tried(modscope.virtual_gpu("a100").__enter__)
            tried(lambda: gpu.capture)
        tried(gpu.__enter__)
        tried(lambda: modscope.virtual_gpu("h10"))
        tried(modscope.virtual_gpu("h100", torch="newest").__enter__)
        tried(modscope.virtual_gpu("h100", path=__import__("sys").executable).__enter__)
        print(torch.cuda.is_available())
    """)
    assert out[:4] == [
        "fits is known after the virtual GPU was left: read it after the with statement, or after stop()",
        "a virtual GPU is installed already: a process can have one at a time. Leave the other one first.",
        "the capture is complete after the virtual GPU was left: read it after the with statement, or after stop()",
        "this virtual GPU was used already. Use another virtual_gpu(...).",
    ]
    assert out[4].startswith("'h10' is not a GPU that is known (did you mean h100?)")
    assert (
        out[5] == "'newest' is not a version of torch that is known: give 2.0 or newer, such as 2.11"
        and "exists already" in out[6]
        and out[7] == "False"
    )


def test_a_backward_may_have_run_before():
    out = run("""
        torch.ones(3, requires_grad=True).sum().backward()
        for _ in range(2):
            with modscope.virtual_gpu("h100") as gpu:
                torch.ones(1 << 20, device="cuda", requires_grad=True).sum().backward()
            print(gpu.peak_allocated, gpu.fits)
            print(torch.cuda.is_available(), torch.ones(3, requires_grad=True).sum().backward())
    """)
    assert out == ["8389632 True", "False None"] * 2


@pytest.mark.parametrize("how", ["fork", "spawn"])
def test_workers_that_return_tensors_of_the_gpu_get_an_error(tmp_path, how):
    (tmp_path / "data.py").write_text(
        "import torch\n"
        "class OnGpu(torch.utils.data.Dataset):\n"
        "    def __len__(self): return 4\n"
        "    def __getitem__(self, i): return torch.ones(3, device='cuda')\n"
    )
    (tmp_path / "program.py").write_text(
        "import data, torch\n"
        "if __name__ == '__main__':\n"
        f"    list(torch.utils.data.DataLoader(data.OnGpu(), num_workers=1, multiprocessing_context='{how}'))\n"
    )
    ran = predict(tmp_path, "--gpu", "h100", "--seconds", "0", "program.py")
    assert "a tensor of a virtual GPU cannot be shared with another process: send a copy" in ran.err
    assert ran.status == 1
