"""Each thread runs its own modules, all are counted in one ledger, and one thread may free what another allocated.
The dispatcher's mode sees only one thread, so it is not tested here."""

import queue
import threading

from helpers import leaf, make, mlp, needs_interception, pair
from memory_helpers import CPU, bytes_of, held, held_by, now, of_module, wrong_sums
from modscope import MemTracker

import torch

pytestmark = needs_interception


def in_threads(*works):
    """Run each function in a new thread; raise the first error."""
    errors = []

    def guarded(work):
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
        assert not thread.is_alive(), "hangs"
    if errors:
        raise errors[0]


def test_a_block_freed_by_another_thread():
    with MemTracker("allocator") as mt:
        kept = [torch.zeros(100)]
        assert now(mt) == 400
        in_threads(kept.clear)
        assert now(mt) == 0


def test_a_block_made_by_another_thread():
    kept = []
    with MemTracker("allocator") as mt:
        in_threads(lambda: kept.append(torch.zeros(100)))
        assert now(mt) == 400
        kept.clear()
        assert now(mt) == 0


def test_blocks_go_round_through_many_threads():
    """Every block is allocated by one thread and freed by another; at the end only what is kept counts."""
    handed = queue.Queue(maxsize=16)

    def maker():
        for i in range(300):
            handed.put(torch.zeros(i % 7 + 1))
        handed.put(None)

    def taker():
        while handed.get() is not None:
            pass

    with MemTracker("allocator") as mt:
        in_threads(*[maker] * 4, *[taker] * 4)
        assert now(mt) == 0
        kept = torch.zeros(10)
        assert now(mt) == 40
        assert wrong_sums(mt) == [] and mt.lost == 0
    del kept


def test_each_thread_is_in_its_own_module():
    """All are inside their forwards at once."""
    together = threading.Barrier(4, timeout=600)

    def body(size):
        def forward(m, x):
            together.wait()
            out = torch.zeros(size)
            together.wait()
            return out

        return forward

    mods = [make(f"Mod{i}", lambda m, x: m.a(x), a=leaf(body(10 * (i + 1)))) for i in range(4)]
    kept = []
    with MemTracker("allocator") as mt:
        in_threads(*[lambda mod=mod: kept.append(mod(1)) for mod in mods])
        found = {f"Mod{i}.a": of_module(mt, f"Mod{i}.a")["Activation"] for i in range(4)}
    assert found == {"Mod0.a": 40, "Mod1.a": 80, "Mod2.a": 120, "Mod3.a": 160}


def test_different_models_train_side_by_side():
    mods = [mlp(2, 8 + 4 * i) for i in range(4)]
    opts = [torch.optim.Adam(mod.parameters()) for mod in mods]
    inputs = [torch.randn(4, 8 + 4 * i) for i in range(4)]

    def train(i):
        for _ in range(10):
            mods[i](inputs[i]).square().sum().backward()
            opts[i].step()

    mt = MemTracker("allocator")
    mt.track_external(mods, opts, inputs)
    with mt:
        in_threads(*[lambda i=i: train(i) for i in range(4)])
        assert held(mt) == held_by(mods, opts)
        assert now(mt) == sum(held_by(mods, opts).values()) + bytes_of(inputs)
        assert wrong_sums(mt) == []


def test_one_model_in_several_threads():
    """As in inference servers."""
    mod, x = mlp(3, 16), torch.randn(4, 16)
    kept = []

    def serve():
        with torch.no_grad():
            for _ in range(20):
                out = mod(x)
        kept.append(out)

    with MemTracker("allocator") as mt:
        in_threads(*[serve] * 4)
        assert now(mt, "Parameter") == held_by([mod])["Parameter"]
        assert now(mt, "Activation") == bytes_of(kept) == 4 * 4 * 16 * 4
        assert of_module(mt, "Sequential.5")["Activation"] == bytes_of(kept)


def test_backward_in_another_thread_belongs_to_the_module_all_the_same():
    mod, x = pair(mlp(1, 8), mlp(1, 8)), torch.randn(4, 8)
    mt = MemTracker("allocator")
    mt.track_external(mod, x)
    with mt:
        loss = mod(x).sum()
        in_threads(loss.backward)
        assert held(mt) == held_by([mod])
        assert of_module(mt, "Mod.a.0")["Gradient"] == of_module(mt, "Mod.b.0")["Gradient"] == 288
        del loss
        assert now(mt, "Activation") == now(mt, "Temp") == 0


def test_reading_while_others_work():
    """The sums are right whenever figures are read."""
    stop = threading.Event()
    started = threading.Barrier(4, timeout=600)
    mods = [mlp(2, 8) for _ in range(3)]
    x = torch.randn(4, 8)

    def work(mod):
        mod(x)
        started.wait()
        while not stop.is_set():
            mod(x).sum().backward()
            mod.zero_grad()

    def reader():
        try:
            started.wait()
            for _ in range(100):
                for type in ("current", "peak"):
                    figures = mt.get_tracker_snapshot(type).get(CPU)
                    if figures:
                        assert sum(v for k, v in figures.items() if k != "Total") == figures["Total"]
                        assert min(figures.values()) >= 0
        finally:
            stop.set()

    with MemTracker("allocator") as mt:
        in_threads(reader, *[lambda mod=mod: work(mod) for mod in mods])
        assert held(mt) == held_by(mods)
        assert wrong_sums(mt) == []


def test_entering_and_leaving_while_others_work():
    stop = threading.Event()
    mod, x = mlp(2, 8), torch.randn(4, 8)

    def work():
        own = mlp(2, 8)
        own(x)
        while not stop.is_set():
            own(x).sum().backward()

    def enter():
        try:
            for _ in range(50):
                with MemTracker("allocator") as mt, torch.no_grad():
                    kept = mod(x)
                    found = mt.get_module_snapshot()[CPU]  # the threads' models are named in the order of their calls
                    assert sum(found[fqn]["Activation"] for fqn in found if fqn.endswith(".3")) >= kept.nbytes
        finally:
            stop.set()

    in_threads(enter, work, work)
    with MemTracker("allocator") as mt:
        assert now(mt) == 0


def test_a_tracker_entered_in_one_thread_is_left_in_another():
    mt = MemTracker("allocator")
    mt.__enter__()
    kept = torch.zeros(10)
    in_threads(lambda: mt.__exit__(None, None, None))
    later = torch.zeros(10)
    assert now(mt) == 40
    del kept, later


def test_a_parallel_operator_that_allocates_in_torchs_own_threads():
    """What at::parallel_for's workers allocate is counted, and freed at the end."""
    x = torch.randn(512, 512)
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        with MemTracker("allocator") as mt:
            for _ in range(5):
                y = x.sort(dim=0)
                z = torch.fft.rfft(x)
            del y, z
            assert now(mt) == 0
    finally:
        torch.set_num_threads(before)
