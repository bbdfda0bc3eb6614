"""A virtual GPU: a script runs on a CUDA device that is not there, to see how much memory it would need.

    device.py       install and remove the device; torch.cuda's answers
    operators.py    what an operator returns: shapes and types, from torch's own meta kernels
    kernels.py      operators that need more than that: views, copies, attention
    gpus.py         the GPUs that can be virtual
    table.py        what operators were measured to take on a GPU
"""
