"""DistributedDataParallel as a user would write it."""

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import torch
from torch import nn

dist.init_process_group("nccl")
torch.cuda.set_device(0)
model = DistributedDataParallel(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(10)]).cuda(), device_ids=[0])
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    x = torch.randn(8, 1024, device="cuda")
    with model.no_sync():
        model(x).sum().backward()
    model(x).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
