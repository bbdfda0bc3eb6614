"""Counting by the dispatcher imports nothing that the program did not import. Importing dynamo takes seconds."""

from helpers import run_python

PROGRAM = """
    import sys, torch
    from modscope import MemTracker
    mod = torch.nn.Linear(4, 4)
    mt = MemTracker("dispatcher")
    mt.track_external(mod)
    before = set(sys.modules)
    with mt:
        mod(torch.ones(1, 4)).sum().backward()
        assert mt.get_tracker_snapshot()[torch.device("cpu")]["Gradient"] == 80
    print("torch._dynamo" in sys.modules, sorted(name for name in set(sys.modules) - before if name.startswith("torch")))
"""


def test_dynamo_is_not_imported():
    ran = run_python(PROGRAM)
    assert ran.stdout.startswith("False "), ran
