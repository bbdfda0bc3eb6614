"""Train the small GPT of gpt.py with Lightning, and log which modules hold its memory:

python examples/train_lightning.py [FOLDER]
"""

from __future__ import annotations

import csv
import sys

from gpt import GPT
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger
from modscope.integrations.lightning import MemoryCallback
from torch.nn import functional as F

import torch


class Language(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.gpt = GPT(words=1000, length=64, width=128, heads=4, layers=4)

    def training_step(self, batch: torch.Tensor) -> torch.Tensor:
        logits = self.gpt(batch[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters())


folder = sys.argv[1] if len(sys.argv) > 1 else "build/lightning"
logger = CSVLogger(folder, name="gpt")
memory = MemoryCallback(every=2, capture_steps=range(2, 4))
trainer = Trainer(
    max_steps=6,
    logger=logger,
    callbacks=[memory],
    accelerator="cpu",
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Language(), torch.utils.data.DataLoader(torch.randint(1000, (64, 65)), batch_size=8))

with open(f"{logger.log_dir}/metrics.csv") as file:
    for row in csv.DictReader(file):
        print(*(f"{key}={value}" for key, value in row.items() if value), sep="  ")
