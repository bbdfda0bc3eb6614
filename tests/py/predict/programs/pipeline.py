"""A pipeline of as many stages as there are ranks; their shapes are found out by torch."""

import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

import torch
from torch import nn

dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
print("rank", rank)
module = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).cuda()
stage = PipelineStage(module, rank, size, torch.device("cuda", 0))
schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda y, target: (y - target).pow(2).mean())
optimizer = torch.optim.AdamW(module.parameters())
for _ in range(2):
    x = torch.randn(64, 128, 1024, device="cuda")
    if rank == 0:
        schedule.step(x)
    elif rank == size - 1:
        schedule.step(target=x, losses=[])
    else:
        schedule.step()
    optimizer.step()
    optimizer.zero_grad()
dist.destroy_process_group()
