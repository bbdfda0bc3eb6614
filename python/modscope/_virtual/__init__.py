"""A virtual GPU: a script runs on a CUDA device that is not there, to see how much memory it would need.

device/      installs the device in torch and removes it. torch.cuda's questions are answered in cuda_functions.py,
             memory.py and streams.py, those of torch's C++ code in src/torch/virtual; registration.py puts kernels
             into torch's dispatcher.
operators/   what an operator returns. Nothing is computed: operators.py asks torch's meta kernels for shapes and
             types. views.py, values.py, sparse.py and encoder.py have the kernels that need more, known.py the values
             that are known.
rules/       which workspace an operator takes: rules.py is the registry; the rules are in a file for each subject.
compiled/    torch.compile: Inductor compiles for the device, and its kernels do nothing.
time/        how long an operator runs: roofline.py estimates it, table.py looks measurements up, times.py has the
             virtual clock.
ranks/       process groups of virtual ranks, their collectives, and how long these take.
gpus.py      the table of GPUs.
"""
