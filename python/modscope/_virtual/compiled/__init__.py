"""torch.compile for the virtual GPU: dynamo, AOTAutograd and Inductor compile as for a real one, and the code that
Inductor generates runs with kernels that do nothing.

compiler.py   makes Inductor compile for the device, and puts everything back
kernels.py    what a Triton kernel of Inductor does instead of computing: it takes time, and what autotuning allocates
caches.py     Inductor's caches in a folder of modscope's own, and those in memory
assumed.py    what was assumed where Inductor decides by measuring
counts.py     how many graphs were compiled, and where graphs broke
"""
