"""Callbacks for trainers, each imported only where its package is: ``lightning`` and ``huggingface``."""
