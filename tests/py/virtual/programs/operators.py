"""What programs call beside the usual layers. Each is run on a virtual GPU by test_programs.py."""

import torch.nn.functional as F

import torch
from torch import nn

CUDA = "cuda"


def _floats(*shape, grad=False):
    return torch.randn(*shape, device=CUDA, requires_grad=grad)


def _integers(below, *shape):
    return torch.randint(0, below, shape, device=CUDA)


def losses():
    x, y, other = _floats(8, 10, grad=True), _integers(10, 8), _floats(8, 10)
    ones = torch.ones(8, 10, device=CUDA)
    for loss in (
        F.cross_entropy(x, y, label_smoothing=0.1, weight=ones[0]),
        F.cross_entropy(x, other.softmax(-1)),
        F.nll_loss(x.log_softmax(1), y),
        F.binary_cross_entropy(x.sigmoid(), ones),
        F.binary_cross_entropy_with_logits(x, ones, pos_weight=ones[0]),
        F.triplet_margin_loss(x, other, other),
        F.cosine_embedding_loss(x, other, ones[:, 0]),
        F.smooth_l1_loss(x, other),
        F.huber_loss(x, other),
        F.kl_div(x.log_softmax(1), other.softmax(1), reduction="batchmean"),
        F.gaussian_nll_loss(x, other, ones),
        F.hinge_embedding_loss(x, ones),
        F.margin_ranking_loss(x, other, ones),
        F.multi_margin_loss(x, y),
        F.multilabel_margin_loss(x, _integers(10, 8, 10)),
        F.soft_margin_loss(x, ones),
        torch.cdist(x, other).mean(),
    ):
        assert loss.shape == () and loss.is_cuda
        (gradient,) = torch.autograd.grad(loss, x)
        assert gradient.shape == x.shape


def connectionist_temporal_classification():
    for lengths in ("cpu", CUDA):
        x = _floats(50, 16, 20, grad=True)
        inputs, targets = torch.full((16,), 50, device=lengths), torch.full((16,), 30, device=lengths)
        F.ctc_loss(x.log_softmax(-1), _integers(20, 16, 30), inputs, targets, zero_infinity=True).backward()
        assert x.grad.shape == x.shape


def images():
    x = _floats(2, 8, 16, 16, grad=True)
    for mode in ("nearest", "bilinear", "bicubic", "area"):
        assert F.interpolate(x, scale_factor=2, mode=mode).shape == (2, 8, 32, 32)
    grid = F.affine_grid(_floats(2, 2, 3, grad=True), (2, 8, 5, 5))
    F.grid_sample(x, grid).sum().backward()
    F.fold(F.unfold(x, 3), (16, 16), 3).sum().backward()
    pooled, indices = F.max_pool2d(x, 2, return_indices=True)
    F.max_unpool2d(pooled, indices, 2).sum().backward()
    assert F.pixel_shuffle(x, 2).shape == (2, 2, 32, 32) and F.pixel_unshuffle(x, 2).shape == (2, 32, 8, 8)
    F.fractional_max_pool2d(x, 2, output_size=5).sum().backward()


def values_and_indices():
    x = _floats(6, 8)
    for found in (x.sort(), x.topk(3), x.cummax(0), x.cummin(1), x.median(1), x.kthvalue(2), x.mode(), x.max(1)):
        assert found.values.shape == found.indices.shape and found.indices.dtype == torch.int64
    assert x.cumsum(0).shape == x.logcumsumexp(1).shape == (6, 8)
    assert x.quantile(torch.tensor([0.1, 0.9], device=CUDA), dim=1).shape == (2, 6)
    assert torch.histc(x, 10).shape == (10,) and torch.bucketize(x, _floats(5)).shape == (6, 8)
    assert torch.multinomial(x.abs(), 3).shape == (6, 3) and F.one_hot(_integers(5, 10), 5).shape == (10, 5)
    assert x.scatter_reduce(0, _integers(6, 6, 8), x, "amax").shape == (6, 8)
    x[_integers(6, 4)] = _floats(4, 8)
    x[:, torch.tensor([0, 1])] = 0.0
    assert torch.repeat_interleave(x, torch.tensor([1, 2, 3, 0, 0, 1]).cuda(), dim=0).shape == (7, 8)
    assert x.remainder(3).dtype == torch.float32 and _integers(5, 4).remainder(3).dtype == torch.int64
    assert (_integers(5, 4) % 1.5).dtype == torch.float32


def linear_algebra():
    a = _floats(3, 5, 5, grad=True)
    for name in ("inv", "det", "eigh", "svd", "qr", "cholesky", "pinv", "matrix_exp", "lu", "lstsq"):
        function = getattr(torch.linalg, name)
        found = function(a, a) if name == "lstsq" else function(a)
        parts = found if isinstance(found, tuple) else (found,)
        sum(part.abs().sum() for part in parts if part.requires_grad).backward()
    assert torch.geqrf(a.detach())[1].shape == (3, 5)
    assert torch.linalg.solve(a, a).shape == torch.linalg.matrix_power(a, 3).shape == (3, 5, 5)


def fourier_transforms():
    x = _floats(4, 16, 16, grad=True)
    torch.fft.irfft2(torch.fft.rfft2(x)).sum().backward()
    window = torch.hann_window(64, device=CUDA)
    spectrum = torch.stft(_floats(2, 400), 64, return_complex=True, window=window)
    assert spectrum.dtype == torch.complex64 and torch.istft(spectrum, 64, window=window).shape == (2, 400)
    z = torch.view_as_complex(_floats(4, 2, grad=True))
    (z * z.conj()).real.sum().backward()


def attention_layers():
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2).cuda()
    mask = torch.zeros(2, 3, dtype=torch.bool, device=CUDA)
    encoder(_floats(2, 3, 16), src_key_padding_mask=mask).sum().backward()
    encoder.eval()
    with torch.no_grad():
        assert encoder(_floats(2, 3, 16), src_key_padding_mask=mask).shape == (2, 3, 16)


def fake_quantization():
    x = _floats(4, 4, grad=True)
    torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127).sum().backward()
    zeros = torch.zeros(4, device=CUDA, dtype=torch.int32)
    torch.fake_quantize_per_channel_affine(x, torch.ones(4, device=CUDA), zeros, 0, -128, 127).sum().backward()


def sparse_matrices():
    matrix = torch.sparse_coo_tensor(_integers(4, 2, 6), _floats(6), (4, 4)).coalesce()
    dense = _floats(4, 3, grad=True)
    torch.sparse.mm(matrix, dense).sum().backward()
    assert dense.grad.shape == (4, 3) and matrix.to_dense().shape == (4, 4)
    assert _floats(4, 4).to_sparse().is_sparse


def operators_with_a_fake_kernel():
    @torch.library.custom_op("modscope_test::first_half", mutates_args=())
    def first_half(x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("this needs values")

    @first_half.register_fake
    def _(x):
        return x.new_empty(x.size(0) // 2)

    assert first_half(_floats(8)).shape == (4,) and first_half(_floats(8)).is_cuda


def operators_without_one_are_named():
    library = torch.library.Library("modscope_test_other", "DEF")
    library.define("unknown(Tensor x) -> Tensor")
    try:
        torch.ops.modscope_test_other.unknown(_floats(8))
    except RuntimeError as error:
        assert str(error).startswith("modscope_test_other::unknown is a CUDA kernel of an extension"), error
        assert "torch.library.register_fake" in str(error), error
    else:
        raise AssertionError("nothing was raised")
