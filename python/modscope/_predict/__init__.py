"""Run a script on virtual GPUs and ranks, and say what it would take."""
