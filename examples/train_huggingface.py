"""Train a small GPT-2 with Hugging Face's Trainer, and log which modules hold its memory:

python examples/train_huggingface.py [FOLDER]
"""

from __future__ import annotations

import sys

from modscope.integrations.huggingface import MemoryCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

import torch

folder = sys.argv[1] if len(sys.argv) > 1 else "build/huggingface"
model = GPT2LMHeadModel(GPT2Config(n_layer=4, n_embd=128, n_head=4, n_positions=64, vocab_size=1000))
data = [{"input_ids": words, "labels": words} for words in torch.randint(1000, (64, 64))]
arguments = TrainingArguments(
    folder, max_steps=6, logging_steps=2, use_cpu=True, save_strategy="no", report_to=[], disable_tqdm=True
)
memory = MemoryCallback(capture_steps=range(3, 5))
trainer = Trainer(model, arguments, train_dataset=data, callbacks=[memory])
trainer.train()
