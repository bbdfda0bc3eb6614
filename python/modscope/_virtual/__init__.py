"""A virtual GPU: a script runs on a CUDA device that is not there, to see how much memory it would need.

    device.py          install and remove the device, and test it
    probes.py          find the functions of torch's C++ classes that are answered (src/torch/virtual_answers.c)
    registration.py    put the kernels into torch's dispatcher
    cuda_functions.py  what torch.cuda asks of the device; memory.py, streams.py, properties.py, storages.py and
                       legacy_types.py have the parts
    operators.py       what an operator returns: shapes and types, from torch's own meta kernels
    kernels.py         operators that need more than that: views, copies, attention
    gpus.py            the GPUs that can be virtual
"""
