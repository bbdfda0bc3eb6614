"""A virtual GPU: a script runs on a CUDA device that is not there, to see how much memory it would need.

    device.py       install and remove the device; torch.cuda's answers
    operators.py    what an operator returns: shapes and types, from torch's own meta kernels
    kernels.py      operators that need more than that: views, copies, attention
    gpus.py         the GPUs that can be virtual
    times.py        what launching an operator costs the host; the virtual clock
    roofline.py     how long the device runs an operator
    products.py     the same for matrix products
    kinds.py        the fractions of a card's peaks that operators reach
"""
