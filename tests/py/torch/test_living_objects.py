"""Looking for living modules and optimizers disturbs no other thread."""

import sys
import threading

from modscope import _native

import torch


def test_instances_of_subclasses_are_found():
    mods = [torch.nn.Linear(1, 1), torch.nn.Sequential()]
    found = {id(mod) for mod in _native.living_instances(torch.nn.Module)}
    assert {id(mod) for mod in mods} <= found


def test_another_thread_makes_a_tuple_from_a_generator():
    """The tuple is in the list of all objects before it is complete; Python raises if anybody else refers to it
    then."""
    stop, errors = threading.Event(), []

    def make_tuples():
        try:
            while not stop.is_set():
                assert len(tuple(number for number in range(2000))) == 2000
        except BaseException as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=make_tuples)
    thread.start()
    try:
        for _ in range(200):
            _native.living_instances(torch.nn.Module)
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(interval)
    assert errors == []
