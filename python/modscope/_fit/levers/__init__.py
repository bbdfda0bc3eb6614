"""The levers of ``modscope fit``: what can be changed about a run, as edits of its events, and what that costs.

registry.py has what a lever is and ``@lever``, which registers a function that proposes some; the other files have the
levers, by what they change. They are imported in the order in which levers of the same cost are listed."""

# ruff: noqa: I001
from modscope._fit.levers import settings as settings
from modscope._fit.levers import checkpoints as checkpoints
from modscope._fit.levers import optimizer as optimizer
from modscope._fit.levers import host_memory as host_memory
from modscope._fit.levers import fsdp2 as fsdp2
