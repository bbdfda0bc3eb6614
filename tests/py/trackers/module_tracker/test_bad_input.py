"""Wrong use raises a clear Python exception, never crashes, and the tracker works afterwards."""

import gc

import modscope
import pytest
from helpers import NOWHERE, at, grad_input, leaf, look, make, run_python
from modscope import ModTracker

import torch
from torch import nn


def works(t):
    seen = []
    make("Solo", lambda m, x: seen.append(look(t)))(1)
    assert seen == [at("forward", "Solo")]


NOT_MODULES = [None, 1, "Linear", nn.Linear, torch.ones(1), [], object()]


@pytest.mark.parametrize("thing", NOT_MODULES, ids=repr)
def test_asking_the_fqn_of_what_is_no_module(t, thing):
    with pytest.raises(TypeError, match="(?i)module"):
        t.get_known_fqn(thing)
    works(t)


@pytest.mark.parametrize("thing", NOT_MODULES, ids=repr)
def test_asking_the_private_name_of_what_is_no_module(t, thing):
    with pytest.raises(TypeError, match="(?i)module"):
        t._get_mod_name(thing)
    works(t)


def test_asking_with_no_or_many_arguments(t):
    with pytest.raises(TypeError):
        t.get_known_fqn()
    with pytest.raises(TypeError):
        t.get_known_fqn(leaf(), leaf())
    works(t)


@pytest.mark.parametrize("thing", [1, "hook", [], object()], ids=repr)
@pytest.mark.parametrize("kind", ["pre_fw_hook", "post_fw_hook", "pre_bw_hook", "post_bw_hook"])
def test_a_hook_that_is_not_callable(mt, kind, thing):
    with pytest.raises(TypeError, match=kind):
        mt.register_user_hooks(**{kind: thing})
    mt.register_user_hooks(**{kind: lambda *args: None})
    works(mt)


def test_one_bad_hook_registers_none(mt):
    got = []
    with pytest.raises(TypeError):
        mt.register_user_hooks(lambda *args: got.append(1), None, 3, None)
    works(mt)
    assert got == []


def test_wrong_names_and_numbers_of_hooks(mt):
    with pytest.raises(TypeError):
        mt.register_user_hooks(nonsense=lambda *args: None)
    with pytest.raises(TypeError):
        mt.register_user_hooks(None, None, None, None, None)
    with pytest.raises(TypeError):
        mt.clear_user_hooks(1)
    works(mt)


def test_a_hook_with_the_wrong_number_of_arguments(mt):
    mt.register_user_hooks(lambda: None)
    with pytest.raises(TypeError):
        leaf()(torch.ones(1))
    mt.clear_user_hooks()
    works(mt)


@pytest.mark.parametrize("name", ["parents", "stack", "current", "phase", "is_bw", "modules"])
def test_answers_cannot_be_written(t, name):
    with pytest.raises(AttributeError):
        setattr(t, name, None)
    with pytest.raises(AttributeError):
        delattr(t, name)
    works(t)


def test_making_a_tracker_with_arguments(tracker_type):
    with pytest.raises(TypeError):
        tracker_type(1)
    with pytest.raises(TypeError):
        tracker_type(model=leaf())


def test_leaving_what_was_not_entered(tracker_type):
    t = tracker_type()
    try:
        t.__exit__(None, None, None)
    except RuntimeError as error:
        assert str(error)
    with t:
        works(t)
    assert look(t) == NOWHERE


def test_using_a_tracker_whose_module_died(t):
    mod = leaf()
    mod(torch.ones(1))
    del mod
    gc.collect()
    with pytest.raises(KeyError):
        t.modules["Leaf"]
    assert look(t) == NOWHERE


def test_a_subclass_that_forgets_super(tracker_type):
    class Forgets(tracker_type):
        def __init__(self):
            pass

    t = Forgets()
    try:
        assert t.parents == {"Global"}
        with t:
            works(t)
    except (RuntimeError, AttributeError, TypeError) as error:
        assert str(error)


def test_a_module_that_forgets_super(t):
    class Forgets(nn.Module):
        def __init__(self):
            pass

        def forward(self, x):
            return x

    with pytest.raises(AttributeError):
        Forgets()(1)
    assert look(t) == NOWHERE
    works(t)


def test_call_impl_of_what_is_no_module(t):
    class Fake:
        training = False

        def __getattr__(self, name):
            raise AttributeError(name)

    with pytest.raises(Exception):
        nn.Module._call_impl(Fake())
    with pytest.raises(TypeError):
        nn.Module._call_impl()
    assert look(t) == NOWHERE
    works(t)


def test_a_module_with_odd_insides(t):
    """`_modules` may hold anything, and the tracker must not rely on it."""
    log = []
    mod = make("Odd", lambda m, x: log.append(t.current))
    for insides in ({}, {1: leaf()}, {"a": 3}, {"a": None}, [], None, 5):
        mod.__dict__["_modules"] = insides
        try:
            mod(1)
        except (AttributeError, TypeError):
            pass
        assert look(t) == NOWHERE
    mod.__dict__["_modules"] = {}
    works(t)


def test_trackers_cannot_be_pickled_or_copied_into_a_crash(t):
    import copy
    import pickle

    for make_one in (copy.copy, copy.deepcopy, pickle.dumps):
        try:
            make_one(t)
        except Exception as error:
            assert str(error)
    works(t)


def test_reading_in_the_destructor_of_a_module(t):
    log = []

    class Dies(nn.Module):
        def __del__(self):
            log.append((t.parents, t.get_known_fqn(leaf())))

        def forward(self, x):
            return x * 2

    Dies()(grad_input())
    gc.collect()
    assert log == [({"Global"}, None)]


def test_what_is_public():
    assert {"ModTracker", "ModuleTracker", "drop_in"} <= set(modscope.__all__)
    assert isinstance(modscope.__version__, str)
    assert ModTracker.__doc__ and modscope.ModuleTracker.__doc__


FAKE_TORCH = """
    import sys, importlib.machinery, importlib.abc

    class Fake(importlib.abc.MetaPathFinder, importlib.abc.Loader):
        def find_spec(self, name, path=None, target=None):
            if name.split(".")[0] == "torch":
                return importlib.machinery.ModuleSpec(name, self, is_package=True)
        def create_module(self, spec): return None
        def exec_module(self, module): {body}

    sys.meta_path.insert(0, Fake())
    try:
        import modscope
        from modscope import MemTracker
    except ImportError as error:
        print(type(error).__name__, str(error).replace(chr(10), " "))
"""


@pytest.mark.parametrize(
    "body,says",
    [
        ("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')", "install"),
        ("module.__version__ = '1.4.0'", "1.4.0"),
        ("pass", "torch"),
    ],
    ids=["missing", "too old", "empty"],
)
def test_no_usable_torch(body, says):
    done = run_python(FAKE_TORCH.format(body=body))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(("ImportError", "ModuleNotFoundError")), done.stdout
    assert says in done.stdout and "torch" in done.stdout and "pip install" in done.stdout
