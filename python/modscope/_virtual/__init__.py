"""A virtual GPU: a script runs on a CUDA device that is not there, to see how much memory it would need.

    device.py       install and remove the device; torch.cuda's answers
    operators.py    what an operator returns: shapes and types, from torch's own meta kernels
    kernels.py      operators that need more than that: views, copies, attention
    rules.py        the registry of rules for the memory that operators take beside their results
    workspaces.py   rules of matrix products
    reductions.py   rules of reductions
    sorting.py      rules of sorts and scans
    indexing.py     rules of embeddings, of selecting and adding by index
    normalization.py, losses.py, copies.py
                    rules of norms, of losses and of copies between devices
    geometry.py     shapes and strides as torch's kernels see them
    gpus.py         the GPUs that can be virtual
"""
