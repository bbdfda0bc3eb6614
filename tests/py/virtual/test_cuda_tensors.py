"""Tensors and storages of a virtual GPU: values, copies, files, storages, old types."""

from __future__ import annotations

from virtual_helpers import needs_interception, run

pytestmark = needs_interception


def test_what_is_not_known_is_read_as_zeros() -> None:
    run("""
        import numpy
        x = torch.ones(2, 3, device="cuda")
        assert (x.is_cuda, x.get_device(), x.type(), x.stride()) == (True, 0, "torch.cuda.FloatTensor", (3, 1))
        assert x.tolist() == [[0.0] * 3] * 2 and x[0, 0].item() == 0 and not x.cpu().any()
        assert str(x) == "tensor([[0., 0., 0.],\\n        [0., 0., 0.]], device='cuda:0')"
        assert torch.equal(x, x) and not torch.equal(x, x + 1)  # the same memory; other memory
        assert not torch.allclose(x, x) and not bool((x == x).all()) and not bool(x.isnan().any())
        assert torch.ones((), device="cuda").item() == 1 and torch.arange(3, device="cuda").tolist() == [0, 1, 2]  # known
        assert error(x.numpy).startswith("TypeError: can't convert cuda:0 device type tensor to numpy")
        assert torch.from_numpy(numpy.ones(3)).cuda().dtype == torch.float64
        assert x.data_ptr() != 0 and x.__cuda_array_interface__["shape"] == (2, 3)
    """)


def test_files_and_copies() -> None:
    run("""
        import copy, pickle
        saved = io.BytesIO()
        torch.save({"tensor": torch.ones(3, device="cuda"), "state": nn.Linear(3, 3).cuda().state_dict()}, saved)
        def load(**options):
            saved.seek(0)
            loaded = torch.load(saved, **options)
            return {str(loaded["tensor"].device), str(loaded["state"]["weight"].device)}
        assert load() == load(map_location="cuda") == load(map_location=lambda storage, _: storage.cuda()) == {"cuda:0"}
        assert load(map_location="cpu") == load(map_location={"cuda:0": "cpu"}) == {"cpu"}
        assert error(load, map_location="cuda:1").startswith("RuntimeError: Attempting to deserialize object on CUDA device 1")
        before = torch.cuda.memory_allocated()
        model = nn.Linear(256, 256).cuda()
        twin = copy.deepcopy(model)
        assert twin.weight.is_cuda and twin.weight.data_ptr() != model.weight.data_ptr()
        assert torch.cuda.memory_allocated() - before == 2 * (256 * 256 * 4 + 1024)
        assert pickle.loads(pickle.dumps(torch.ones(3, device="cuda"))).is_cuda
        from multiprocessing.reduction import ForkingPickler
        import torch.multiprocessing
        assert error(ForkingPickler.dumps, torch.ones(3, device="cuda")) == (
            "RuntimeError: a tensor of a virtual GPU cannot be shared with another process: send a copy, tensor.cpu()")
    """)


def test_storages() -> None:
    run("""
        allocated = torch.cuda.memory_allocated
        x = torch.ones(1000, device="cuda")
        storage = x.untyped_storage()
        assert (storage.nbytes(), str(storage.device), storage.data_ptr()) == (4000, "cuda:0", x.data_ptr())
        storage.resize_(0)
        assert storage.nbytes() == 0 and allocated() == 0 and x.data_ptr() == 0
        storage.resize_(4000)
        assert storage.nbytes() == 4000 and allocated() == 4096 and x.data_ptr() != 0
        assert error(storage.resize_, 90 << 30).startswith("OutOfMemoryError") and storage.nbytes() == 4000
        made = torch.UntypedStorage(100, device="cuda")
        assert made.is_cuda and made.clone().is_cuda and not made.cpu().is_cuda and torch.ones(3).untyped_storage().cuda().is_cuda
        part = torch.empty(0, device="cuda").set_(storage, 10, (5, 2), (2, 1))
        assert part.data_ptr() == x.data_ptr() + 40 and part.shape == (5, 2)
        assert torch.empty(0, device="cuda").set_(x).data_ptr() == x.data_ptr()
        cpu = torch.ones(4).untyped_storage()  # storages of the CPU are as they were
        assert cpu.resize_(32).nbytes() == 32 and torch.UntypedStorage(5).nbytes() == 5
    """)


def test_old_types() -> None:
    run("""
        x, y = torch.cuda.FloatTensor(3, 4), torch.cuda.LongTensor([1, 2])
        assert (x.shape, x.dtype, y.dtype, x.is_cuda) == ((3, 4), torch.float32, torch.int64, True)
        assert isinstance(x, torch.cuda.FloatTensor) and not isinstance(y, torch.cuda.FloatTensor)
        assert torch.ones(3).type(torch.cuda.HalfTensor).dtype == torch.float16
        assert torch.ones(3).type("torch.cuda.DoubleTensor").is_cuda
    """)
