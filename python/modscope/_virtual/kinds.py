"""Classes of operators, and which fractions of a card's peaks they reach.

Measured over many shapes on an H200, and taken to be the same on other cards. They are typical for a class of operators, not
for one operator with one shape.
"""

from __future__ import annotations

from typing import NamedTuple

KERNEL = 2.5e-6
"""Seconds of a kernel that does next to nothing, with the gap before the next one."""
STRIDED = 0.5
"""The fraction of the bandwidth that is reached where the elements of a tensor are not read in their order in memory."""
ATTENTION = {"flash": (0.30, 0.22), "cudnn": (0.45, 0.33), "efficient": (0.14, 0.11)}
"""The fraction of the tensor cores' peak that attention reaches in 16 bits with wide heads, forward and backward."""
ATTENTION_FLOAT32 = (0.60, 0.42)
"""The same in float32, as a fraction of the peak without tensor cores."""
WIDE_HEAD = 96
"""Elements of a wide head. With narrower heads, the fraction is smaller in proportion."""


class Kind(NamedTuple):
    """A class of operators that move memory."""

    of_bandwidth: float = 0.80
    """The fraction of the bandwidth that it reaches, for its arguments and results moved once."""
    kernels: float = 1
    per_row: float = 0.0
    """Seconds that a multiprocessor takes for a row at least: a row is what is normalized or summed together."""


ELEMENTWISE = Kind()
KINDS = {
    "native_dropout": Kind(0.65),
    "cat": Kind(0.70),
    "masked_fill": Kind(0.45, 2),
    "roll": Kind(0.40),
    "native_layer_norm": Kind(0.70, 1, 0.18e-6),
    "_fused_rms_norm": Kind(0.70, 1, 0.07e-6),
    "native_layer_norm_backward": Kind(0.55, 3, 0.25e-6),
    "_fused_rms_norm_backward": Kind(0.55, 3, 0.25e-6),
    "_log_softmax": Kind(0.50, 1, 0.01e-6),
    "_softmax": Kind(0.60, 1, 0.01e-6),
    "_log_softmax_backward_data": Kind(0.62, 1, 0.01e-6),
    "_softmax_backward_data": Kind(0.62, 1, 0.01e-6),
    "nll_loss_backward": Kind(0.60, 2),
    "embedding_dense_backward": Kind(0.30, 30),
    "_index_put_impl_": Kind(0.20, 12),
    "index_put": Kind(0.20, 12),
    "index_put_": Kind(0.20, 12),
    "index_add_": Kind(0.30),
    "sort": Kind(0.05, 8),
    "topk": Kind(0.10, 4),
    "cumsum": Kind(0.30, 2),
    "max_pool2d_with_indices": Kind(0.40),
    "max_pool2d_with_indices_backward": Kind(0.30),
    "avg_pool2d": Kind(0.35),
    "avg_pool2d_backward": Kind(0.35),
    "_adaptive_avg_pool2d": Kind(0.35),
    "_adaptive_avg_pool2d_backward": Kind(0.15),
    "upsample_bilinear2d": Kind(0.15),
    "upsample_bilinear2d_backward": Kind(0.10),
}
NORMS_BY_CHANNEL = {
    "native_batch_norm": 1.0,
    "_batch_norm_with_update": 1.0,
    "cudnn_batch_norm": 1.8,
    "native_group_norm": 1.0,
}
"""Operators that sum over the elements of a channel or a group in one block of threads, and how many times faster than torch's
own kernel they are."""
CHANNEL_RATE, CHANNEL_RATE_SHARED = 1.1e9, 1.6e9
"""Elements a second that a block of threads sums, alone on a multiprocessor and with others."""
SMALL = {"nll_loss_forward": 2, "nll_loss2d_forward": 3}
"""Operators that look at a few elements, and how many kernels they launch."""
CONVOLUTION_OF_PEAK = 1.0
"""The rate of convolutions, as a fraction of that of matrix products."""
GROUPED_OF_PEAK = 0.4
"""The same for convolutions with several groups."""
FEW_CHANNELS, FEW_CHANNELS_RATE = 8, 0.5
"""With fewer channels, or a number of channels that is no multiple of this, tensor cores help little: this fraction of the peak
without them is reached."""
PLANAR = 8
"""Additional bytes that are moved for each element of arguments and results where channels are not the last dimension: kernels want them
last, and copies are made. A product of channels alone (1 by 1) needs none."""
DEPTHWISE = (0.045, 0.10)
"""The fraction of the peak without tensor cores that convolutions with one channel in each group reach: with channels first, and
with channels last."""
DEPTHWISE_WEIGHT = (0.006, 0.012)
"""The same for the gradient of their weight, which sums over all places for each of a few numbers."""
RECURRENT_STEP = 8e-6
"""Seconds that cuDNN takes at least for one time step of one layer."""
RECURRENT_OF_PEAK = 0.3
"""The fraction of the peak that its products reach, where they take longer than that."""
COUNTED_OF_PEAK = 0.5
"""The fraction of the peak that other operators reach for which torch counts operations."""
MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
"""The most tensors that one kernel takes, by how many lists the operator has (ATen/native/cuda/MultiTensorApply.cuh)."""
MOST_CHUNKS, CHUNK = 320, 65536
"""The most chunks that one kernel takes, and the elements of a chunk (the same file)."""
GATHERS = {"index_select", "index", "gather", "embedding", "take", "_unsafe_index"}
"""They read as much of their first argument as they return."""
SCATTERS = {
    "index_put_",
    "_index_put_impl_",
    "scatter_",
    "scatter_add_",
    "index_add_",
    "index_copy_",
    "scatter_reduce_",
}
"""They write as much of their first argument as the values that they are given."""
OVERWRITES = {"copy_", "fill_", "zero_", "uniform_", "normal_", "random_", "bernoulli_", "exponential_"}
"""They do not read the argument that they change."""
