"""Which modules to checkpoint for a budget. Needs no torch, except ``apply``."""
