"""Beside torch's own MemoryTracker, on a virtual GPU: the same operators, the same figures, and the same names where
torch's are right."""

from virtual_helpers import needs_interception, run

pytestmark = needs_interception

BOTH = """
    import modscope
    from torch.distributed._tools.memory_tracker import MemoryTracker as Theirs
    from torch.utils.checkpoint import checkpoint

    FIGURES = ("memories_allocated", "memories_active", "memories_reserved")

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.rest = nn.Linear(64, 64), nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))
            self.norm = nn.LayerNorm(64)

        def forward(self, x):
            return self.norm(self.rest(self.first(x)))

    def both(net, work):
        theirs, ours = Theirs(), modscope.MemoryTracker()
        theirs.start_monitor(net)
        ours.start_monitor(net)
        work()
        ours.stop()
        theirs.stop()
        return theirs, ours

    def pairs(theirs, ours):
        for figure in FIGURES:
            a, b = getattr(theirs, figure), getattr(ours, figure)
            assert list(a) == list(b) and len(a) > 20
            for i in a:
                assert a[i][1] == b[i][1], (figure, i, a[i], b[i])
                assert a[i][0].split(".")[-2:] == b[i][0].split(".")[-2:], (i, a[i], b[i])
        return [(theirs.memories_allocated[i][0], ours.memories_allocated[i][0]) for i in theirs.memories_allocated]
"""


def test_a_training_step_has_torch_s_operators_figures_and_markers():
    assert run(
        BOTH
        + """
    net = Net().cuda()
    optimizer = torch.optim.AdamW(net.parameters(), foreach=False)
    x = torch.randn(512, 64, device="cuda")

    def steps():
        for _ in range(2):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = net(x).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()

    theirs, ours = both(net, steps)
    found = pairs(theirs, ours)
    assert ours._op_index == theirs._op_index
    assert ours._operator_names == theirs._operator_names
    assert ours._markers == theirs._markers and set(ours._markers) == {"fw_start", "fw_bw_boundary"}
    assert ours._num_alloc_retries == theirs._num_alloc_retries == 0

    begin, end = ours._markers["fw_start"], ours._markers["fw_bw_boundary"]
    forward = found[begin:end]
    assert forward and all(a == b for a, b in forward), forward     # Net itself runs no operator
    named = [b for _, b in found[end:] if ".backward." in b]
    assert {name.split(".backward.")[0] for name in named} == {"first", "rest.0", "rest.1", "rest.2", "norm"}
    assert all(a.startswith("norm.forward.") for a, _ in found[end:])
    assert max(figure for _, figure in ours.memories_reserved.values()) > max(figure for _, figure in ours.memories_allocated.values())
    print("done")
    """
    ) == ["done"]


def test_figures_are_torch_cuda_s_and_the_cache_stays():
    assert run(
        BOTH
        + """
    net = Net().cuda()
    torch.empty(100 << 20, dtype=torch.uint8, device="cuda")      # is freed at once, and stays in the cache
    theirs = Theirs()
    theirs.start_monitor(net)                                     # empties the cache
    theirs.stop()
    assert torch.cuda.memory_reserved() < 100 << 20
    torch.empty(100 << 20, dtype=torch.uint8, device="cuda")
    before = torch.cuda.memory_stats()
    tracker = modscope.MemoryTracker()
    tracker.start_monitor(net)
    assert torch.cuda.memory_stats() == before
    net(torch.randn(512, 64, device="cuda")).sum().backward()
    last = tracker._op_index - 1
    assert tracker.memories_reserved[last][1] == torch.cuda.memory_reserved() / 2**20 > 100
    out = torch.empty(5 << 20, dtype=torch.uint8, device="cuda")
    assert tracker.memories_allocated[last + 1][1] == torch.cuda.memory_allocated() / 2**20
    assert tracker.memories_active[last + 1][1] == torch.cuda.memory_stats()["active_bytes.all.current"] / 2**20
    tracker.stop()
    print("done")
    """
    ) == ["done"]


def test_checkpointed_parts_and_an_allocation_that_fails():
    assert run(
        BOTH
        + """
    net = Net().cuda()
    x = torch.randn(512, 64, device="cuda", requires_grad=True)

    def work():
        checkpoint(net, x, use_reentrant=False).sum().backward()
        try:
            torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
        except torch.OutOfMemoryError:
            pass
        net(x)

    theirs, ours = both(net, work)
    found = pairs(theirs, ours)
    assert all(a == b for a, b in found if ".addmm." in b or ".gelu." in b)
    assert ours._num_alloc_retries == theirs._num_alloc_retries
    assert ours._markers == theirs._markers
    print("done")
    """
    ) == ["done"]


def test_a_model_on_the_cpu_is_read_there_unless_the_gpu_is_asked_for():
    assert run(
        BOTH
        + """
    held = torch.empty(3 << 20, dtype=torch.uint8, device="cuda")
    net = nn.Linear(512, 512, bias=False)
    for device, expected in ((None, 1.0), ("cuda", 3.0), ("cuda:0", 3.0), ("cpu", 1.0)):
        tracker = modscope.MemoryTracker(device=device)
        tracker.start_monitor(net)
        net.weight.view(-1)
        tracker.stop()
        assert tracker.memories_allocated == {0: (".view.default_0", expected)}, (device, tracker.memories_allocated)
    print("done")
    """
    ) == ["done"]
