"""Programs that fail on a GPU in the same way as on the virtual one, and what they find when they go on."""

import signal

import pytest
from predict_helpers import needs_virtual_gpu, predict, predict_apart, predict_json, training, write

pytestmark = [pytest.mark.slow, needs_virtual_gpu]


def test_a_backward_that_ran_out_of_memory_has_freed_its_graph(tmp_path):
    """A thread of autograd holds the graph until it gets Python, which it does not get here unless it is waited for."""
    script = write(
        tmp_path,
        """
        import sys, torch
        sys.setswitchinterval(10)
        model = torch.nn.Sequential(*[torch.nn.Linear(4000, 4000) for _ in range(20)]).cuda()
        for _ in range(5):
            try:
                model(torch.ones(65536, 4000, device="cuda")).sum().backward()
            except torch.OutOfMemoryError:
                pass
            print(torch.cuda.memory_allocated() >> 30)
        """,
    )
    ran = predict(tmp_path, "--gpu", "rtx4090", script)
    assert ran.status == 0 and ran.out.split() == ["1"] * 5, ran.err
    assert " failed, in step 1, backward of Sequential.19\n" in ran.err


def test_a_fork_of_a_process_that_used_the_gpu_cannot_use_it(tmp_path):
    script = write(
        tmp_path,
        """
        import torch
        class Data(torch.utils.data.Dataset):
            def __len__(self):
                return 4
            def __getitem__(self, index):
                return torch.ones(4).to("cuda") if used is not None else torch.ones(4)
        used = None
        print(next(iter(torch.utils.data.DataLoader(Data(), num_workers=1))).shape)
        used = torch.ones(4, device="cuda")
        next(iter(torch.utils.data.DataLoader(Data(), num_workers=1)))
        """,
    )
    ran = predict(tmp_path, "--gpu", "h100", "--seconds", "30", script)
    assert ran.status == 1 and ran.out == "torch.Size([1, 4])\n"
    assert "RuntimeError: Cannot re-initialize CUDA in forked subprocess." in ran.err and "--seconds" not in ran.err


def test_the_profiler_with_cuda_prints_no_warnings(tmp_path):
    text = """
        from torch.profiler import ProfilerActivity, profile
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            step()
        print(len(profiler.key_averages()) > 3)
    """
    ran = predict(tmp_path, "--gpu", "h100", training(tmp_path, text))
    assert ran.status == 0 and ran.out == "True\n" and "Failed to record CUDA event" not in ran.err


@pytest.mark.parametrize(
    "text, has_time", [("step()", True), ("net(torch.ones(8, 1024, device='cuda')).sum().backward()", False)]
)
def test_only_a_complete_step_has_a_time(tmp_path, text, has_time):
    """The script has an optimizer, so that a backward ends no step (test_steps.py has scripts without one)."""
    assert (predict_json(tmp_path, "--gpu", "h100", training(tmp_path, text))["step_ms"] is not None) == has_time


LAUNCHER = """
    import torch, torch.multiprocessing

    def work(rank):
        net = torch.nn.Linear(1024, 4096 * 1024, device="cuda", bias=False)
        net(torch.ones(8, 1024, device="cuda"))

    if __name__ == "__main__":
        torch.multiprocessing.spawn(work, nprocs=torch.cuda.device_count())
"""


def test_a_process_that_the_script_starts_is_predicted(tmp_path):
    result = predict_json(tmp_path, "--seconds", "0", "--gpu", "rtx4090", write(tmp_path, LAUNCHER))
    assert result["fits"] and 16 << 30 < result["reserved_peak"] < 17 << 30
    assert result["notes"] == ["This is a process that the script started: the script itself used no GPU."]


def test_the_table_has_the_process_that_the_script_starts(tmp_path):
    ran = predict(tmp_path, "--seconds", "0", "--gpu", "t4,rtx4090", write(tmp_path, LAUNCHER))
    assert ran.status == 0 and [line.split()[0] for line in ran.err.splitlines() if " fits" in line] == ["rtx4090"]
    assert "  does not fit: " in ran.err


def test_a_slow_link_does_not_hide_the_host_s_time(tmp_path):
    """Copying a model to the GPU blocks the host: otherwise the device would be behind for many steps, which would then
    take only the device's time."""
    text = """
        big = torch.ones(1 << 24).to("cuda")
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(100):
            begin.query()
            tiny = torch.relu(big[:8])
        end.record()
        print(begin.elapsed_time(end) > 2)
    """
    assert predict(tmp_path, "--gpu", "t4", training(tmp_path, text)).out == "True\n"


def test_ctrl_c_before_torch_is_imported_is_the_script_s_status(tmp_path):
    """What is imported at the end must not make Python forget that KeyboardInterrupt ended the script."""
    script = write(tmp_path, "raise KeyboardInterrupt")
    assert predict_apart(tmp_path, "--gpu", "h100", script).status == -signal.SIGINT
