"""Callbacks for trainers: ``lightning`` and ``huggingface``. Each needs its trainer's package."""
