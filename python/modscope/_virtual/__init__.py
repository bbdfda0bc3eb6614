"""A virtual GPU: a script runs on a CUDA device that is not there, to see how much memory it would need.

device.py          install and remove the device, and test it
probes.py          find the functions of torch's C++ classes that are answered (src/torch/virtual_answers.c)
registration.py    put the kernels into torch's dispatcher
cuda_functions.py  what torch.cuda asks of the device; memory.py, streams.py, properties.py, storages.py,
                   legacy_types.py and out_of_memory.py have the parts
operators.py       what an operator returns: shapes and types, from torch's own meta kernels
shapes.py          shapes of results that torch has no meta kernel for
kernels.py         the kernels of operators that need more than that, by subject: views.py, values.py, sparse.py, attention.py,
                   encoder.py, batch_norm.py, recurrent.py, losses.py, sorting.py
known.py           what is known of values
custom_operators.py  custom operators that have a fake kernel
unknown.py         the error of a kernel of which nothing is known
rules.py           the registry of rules for the memory that operators take beside their results
workspaces.py, reductions.py, sorting.py, indexing.py, normalization.py, losses.py, copies.py, convolution.py,
batch_norm.py, pooling.py, recurrent.py, attention_memory.py, sharding.py
                   the rules, by subject
geometry.py        shapes and strides as torch's kernels see them
table.py           what operators were measured to take on a GPU; shipped.py: the tables of the package
gpus.py            the GPUs that can be virtual
environment.py     what torch reads from the environment
times.py           what launching an operator costs the host; the virtual clock
roofline.py        how long the device runs an operator
products.py        the same for matrix products
process_groups.py  process groups of virtual ranks; collectives.py: their collectives
network.py         how long a collective takes, and what NCCL takes of a GPU
traffic.py         when collectives end, and who waits for them
kinds.py           the fractions of a card's peaks that operators reach
"""
