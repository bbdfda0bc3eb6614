"""A virtual GPU: a script runs on a CUDA device that is not there, to see how much memory it would need.

    device.py       install and remove the device; torch.cuda's answers
    operators.py    what an operator returns: shapes and types, from torch's own meta kernels
    kernels.py      the operators that need more than that, and attention
    views.py        new tensors and views
    values.py       reading values, and sizes that depend on them
    known.py        what is known of values
    sparse.py       sparse tensors
    custom_operators.py  operators of torch.library.custom_op
    shapes.py       shapes of results that torch has no meta kernel for
    gpus.py         the GPUs that can be virtual
"""
