"""A virtual rank sees as many GPUs as its node has ranks. Each is a device of its own, and LOCAL_RANK chooses one."""

from __future__ import annotations

import pathlib

import pytest
import warm_python
from helpers import INTERCEPTION

pytestmark = [pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception"), pytest.mark.slow]


def run(folder: pathlib.Path, inside: str, after: str = "", rank: int = 11) -> None:
    """Run a program as a rank of 16, of which 8 share a node."""
    lines = [
        "import os, io, torch, modscope",
        f'with modscope.virtual_gpu("a100", ranks=16, rank={rank}) as gpu:',
        *(f"    {line}" for line in inside.strip().splitlines()),
        after,
    ]
    (folder / "program.py").write_text("\n".join(lines))
    ran = warm_python.run(["program.py"], folder)
    assert ran.returncode == 0, ran.stderr


def test_programs_count_and_choose_them(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
cuda, accelerator = torch.cuda, torch.accelerator
assert (os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"]) == ("3", "8")
assert cuda.device_count() == accelerator.device_count() == 8 and cuda.current_device() == 0
assert str(torch.empty(1, device="cuda").device) == "cuda:0" and str(torch.empty(1, device="cuda:5").device) == "cuda:5"
with cuda.device(6):
    assert torch.empty(1, device="cuda").get_device() == cuda.current_device() == 6
assert cuda.current_device() == 0
accelerator.set_device_index(2)
assert cuda.current_device() == accelerator.current_device_index() == 2
cuda.set_device(3)
assert accelerator.current_device_index() == cuda.current_stream().device.index == cuda.Stream().device.index == 3
for wrong in (lambda: cuda.set_device(8), lambda: torch.empty(1, device="cuda:8"), lambda: cuda.get_device_name(8)):
    try:
        wrong()
    except (RuntimeError, AssertionError) as error:
        assert "device" in str(error), error
    else:
        raise AssertionError("there is no GPU 8")
assert len({str(cuda.get_device_properties(index).uuid) for index in range(8)}) == 8
assert cuda.get_device_name(7) == cuda.get_device_name(0)
""",
    )


def test_results_are_on_the_device_of_what_goes_in(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
model = torch.nn.Sequential(torch.nn.Embedding(9, 8), torch.nn.LSTM(8, 8, 2, dropout=0.5)).to("cuda:3")
ids = torch.randint(9, (4, 5)).to("cuda:3")
assert torch.cuda.current_device() == 0
out, _ = model(ids)
assert {str(tensor.device) for tensor in (out, out @ out.mT, out.sum(), torch.cat([out, out]), out.argmax())} == {"cuda:3"}
out.sum().backward()
optimizer = torch.optim.Adam(model.parameters())
optimizer.step()
tensors = [*model.parameters(), *(p.grad for p in model.parameters())]
tensors += [value for state in optimizer.state.values() for value in state.values() if value.is_cuda]
assert {str(tensor.device) for tensor in tensors} == {"cuda:3"}
file = io.BytesIO()
torch.save(model.state_dict(), file)
def devices(**where):
    file.seek(0)
    return {str(tensor.device) for tensor in torch.load(file, **where).values()}
assert (devices(), devices(map_location="cuda:5"), devices(map_location="cpu")) == ({"cuda:3"}, {"cuda:5"}, {"cpu"})
assert str(out.detach().to("cuda:4").device) == "cuda:4" and str(out.new_zeros(2).device) == "cuda:3"
side = torch.cuda.Stream(device=3)
with torch.cuda.stream(side):
    assert torch.cuda.current_device() == 3 and torch.cuda.current_stream() == side
assert torch.cuda.current_device() == 0 and str(torch.Generator(device="cuda:3").device) == "cuda:3"
storage = torch.zeros(1024, device="cuda:3").untyped_storage()
storage.resize_(0)
assert str(storage.resize_(4096).device) == "cuda:3"
""",
    )


def test_each_has_memory_of_its_own(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
mib, cuda = 1 << 20, torch.cuda
first, second = (torch.empty(size, device=where, dtype=torch.uint8) for size, where in ((3 * mib, "cuda:3"), (mib, "cuda:4")))
assert [cuda.memory_allocated(index) for index in (0, 3, 4)] == [0, 3 * mib, mib]
assert cuda.max_memory_allocated("cuda:3") == 3 * mib and cuda.mem_get_info(0)[0] > cuda.mem_get_info(3)[0]
assert {segment["device"] for segment in cuda.memory_snapshot()} == {3, 4}
assert first.data_ptr() != second.data_ptr()
cuda.set_device(4)
try:
    torch.empty(100 << 30, dtype=torch.uint8, device="cuda:3")
except torch.OutOfMemoryError as error:
    assert "GPU 3 has a total capacity of" in str(error), error
del first
cuda.empty_cache()
assert (cuda.memory_reserved(3), cuda.max_memory_reserved(3)) == (0, 20 * mib)
cuda.reset_peak_memory_stats(3)
assert (cuda.max_memory_reserved(3), cuda.max_memory_reserved(4)) == (0, 2 * mib)
""",
    )


def test_the_result_is_of_the_one_that_the_program_used(tmp_path: pathlib.Path) -> None:
    own = 'torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))\nx = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")'
    is_right = 'assert gpu.result["device"] == "{}" and gpu.peak_allocated == 5 << 20 and gpu.result["notes"] == {}'
    no_group = (
        '["The script made no process group, so it is the same on every rank: ranks matter after init_process_group."'
    )
    run(tmp_path, own, is_right.format("cuda:3", f"{no_group}]"))
    said = (
        "'The script uses cuda:0, the GPU of another rank, and so do all ranks of its node. Choose this rank\\'s own, "
        "cuda:3, by LOCAL_RANK: torch.cuda.set_device(int(os.environ[\\'LOCAL_RANK\\'])).'"
    )
    run(tmp_path, own.splitlines()[1], is_right.format("cuda:0", f"{no_group}, {said}]"))
    run(tmp_path, own.splitlines()[1], is_right.format("cuda:0", f"{no_group}]"), rank=8)
    also = "'The script also uses cuda:1, which other ranks of its node use: their memory is not counted.'"
    run(tmp_path, f'{own}\ny = x[:9].to("cuda:1")', is_right.format("cuda:3", f"{no_group}, {also}]"))


def test_programs_on_all_of_them_run(tmp_path: pathlib.Path) -> None:
    run(
        tmp_path,
        """
model = torch.nn.DataParallel(torch.nn.Linear(16, 16).cuda(), device_ids=[0, 1, 2])
out = model(torch.ones(7, 16, device="cuda"))
assert (out.shape, str(out.device)) == ((7, 16), "cuda:0")
out.sum().backward()
assert model.module.weight.grad.get_device() == 0 and torch.cuda.max_memory_allocated(2) > 0
""",
    )
