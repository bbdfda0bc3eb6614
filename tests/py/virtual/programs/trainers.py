"""Trainers that others wrote: transformers, accelerate, peft, lightning. Each is run by test_programs.py."""

import copy
import io
import tempfile

import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import torch
from torch import nn

TOKENS = [{name: torch.randint(0, 99, (16,)) for name in ("input_ids", "labels")} for _ in range(32)]


def _llama():
    import transformers

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
        "vocab_size": 99,
    }
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))


def _trainer(folder, model, **options):
    import transformers

    usual = {
        "per_device_train_batch_size": 4,
        "max_steps": 4,
        "logging_steps": 2,
        "save_steps": 2,
        "report_to": [],
        "disable_tqdm": True,
    }
    arguments = transformers.TrainingArguments(folder, **{**usual, **options})
    trainer = transformers.Trainer(model, arguments, train_dataset=TOKENS, eval_dataset=TOKENS[:8])
    assert trainer.args.device.type == "cuda"
    return trainer


def huggingface_trainer():
    for options in (
        {"eval_strategy": "steps", "eval_steps": 2},
        {"bf16": True, "gradient_accumulation_steps": 2, "gradient_checkpointing": True},
        {
            "fp16": True,
            "optim": "adamw_torch_fused",
            "lr_scheduler_type": "cosine",
            "warmup_steps": 2,
            "dataloader_num_workers": 2,
        },
        {"optim": "adafactor"},
    ):
        with tempfile.TemporaryDirectory() as folder:
            trainer = _trainer(folder, _llama(), **options)
            assert trainer.train().global_step == 4
            assert trainer.evaluate()["eval_loss"] == 0.0


def huggingface_trainer_resumes():
    with tempfile.TemporaryDirectory() as folder:
        _trainer(folder, _llama(), max_steps=2).train()
        assert _trainer(folder, _llama()).train(resume_from_checkpoint=True).global_step == 4


def huggingface_device_map():
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        _llama().save_pretrained(folder)
        for place in ("cuda", "auto", {"": 0}):
            model = transformers.AutoModelForCausalLM.from_pretrained(folder, device_map=place, dtype=torch.bfloat16)
            weight = next(model.parameters())
            assert weight.is_cuda and weight.dtype == torch.bfloat16
        model.train()
        model(input_ids=TOKENS[0]["input_ids"][None].cuda(), labels=TOKENS[0]["labels"][None].cuda()).loss.backward()


def peft_lora():
    import peft

    for options in ({"target_modules": ["q_proj", "v_proj"]}, {"target_modules": "all-linear", "use_dora": True}):
        model = peft.get_peft_model(_llama(), peft.LoraConfig(r=4, task_type="CAUSAL_LM", **options))
        with tempfile.TemporaryDirectory() as folder:
            assert _trainer(folder, model, bf16=True).train().global_step == 4
        model.merge_and_unload()


def accelerate_loop():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState, GradientState

    for precision in ("no", "bf16", "fp16"):
        AcceleratorState._reset_state(True)
        GradientState._reset_state()
        accelerator = Accelerator(mixed_precision=precision, gradient_accumulation_steps=2)
        model = nn.Linear(8, 4)
        optimizer = torch.optim.AdamW(model.parameters())
        loader = DataLoader(TensorDataset(torch.randn(32, 8), torch.randint(0, 4, (32,))), 8)
        model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
        for x, y in loader:
            with accelerator.accumulate(model):
                accelerator.backward(F.cross_entropy(model(x), y))
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                assert not optimizer.step_was_skipped
                optimizer.zero_grad()
        assert accelerator.gather_for_metrics(model(x)).is_cuda


def lightning_trainer():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.BatchNorm1d(32), nn.Linear(32, 4))

        def training_step(self, batch, index):
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            self.log("loss", loss, prog_bar=True)
            return loss

        def validation_step(self, batch, index):
            self.log("accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    loader = DataLoader(TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,))), 8)
    for precision in ("32-true", "16-mixed", "bf16-mixed"):
        with tempfile.TemporaryDirectory() as folder:
            usual = {
                "accelerator": "gpu",
                "devices": 1,
                "precision": precision,
                "default_root_dir": folder,
                "logger": False,
            }
            trainer = lightning.Trainer(max_epochs=2, gradient_clip_val=1.0, accumulate_grad_batches=2, **usual)
            trainer.fit(Module(), loader, loader)
            assert trainer.strategy.root_device.type == "cuda" and trainer.global_step == 8
            saved = trainer.checkpoint_callback.best_model_path
            trainer = lightning.Trainer(max_epochs=3, **usual)
            trainer.fit(Module(), loader, loader, ckpt_path=saved)
            assert trainer.global_step == 16


def checkpoints():
    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 8, device="cuda")).sum().backward()
    optimizer.step()
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    for place in (None, "cpu", "cuda"):
        file.seek(0)
        loaded = torch.load(file, map_location=place)
        model.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        optimizer.step()
    assert loaded["model"]["weight"].is_cuda
    assert copy.deepcopy(model).weight.is_cuda


def data_loader_with_workers_and_pinned_memory():
    data = TensorDataset(torch.randn(32, 8), torch.randint(0, 4, (32,)))
    loader = DataLoader(data, batch_size=8, shuffle=True, num_workers=2, pin_memory=True, persistent_workers=True)
    model = nn.Linear(8, 4).cuda()
    seen = 0
    for _ in range(2):
        for x, y in loader:
            x, y = x.to("cuda", non_blocking=True), y.cuda(non_blocking=True)
            F.cross_entropy(model(x), y).backward()
            seen += x.size(0)
    assert seen == 64
