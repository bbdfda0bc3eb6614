"""`python -m modscope doctor`: which versions and interception points are used, and why."""

import os
import platform

import pytest
import warm_python
from modscope.__main__ import main
from modscope._show.terminal import Screen
from modscope._torch.doctor import CAN_BE_INSTALLED, describe

import torch

pytestmark = pytest.mark.slow


def modscope(*args, **env):
    return warm_python.run(["-m", "modscope", *args], **env)


@pytest.fixture(scope="module")
def interception():
    return modscope("doctor", MODSCOPE_INTERPOSE="1")


@pytest.fixture(scope="module")
def fallback():
    return modscope("doctor", MODSCOPE_INTERPOSE="0")


def test_it_names_versions(interception, fallback):
    for done in (interception, fallback):
        assert done.returncode == 0, done.stderr
        assert torch.__version__ in done.stdout
        assert platform.python_version() in done.stdout


def test_it_says_what_was_verified(interception):
    out = interception.stdout.lower()
    assert "verified" in out
    assert "call" in out and "node" in out


def test_it_says_that_kinds_are_known(interception):
    if torch.distributed.is_available():
        assert "FSDP2           verified: " in interception.stdout
        assert "DDP             verified: " in interception.stdout


def test_it_says_why_the_fallback_is_used(fallback):
    assert "fallback" in fallback.stdout.lower()
    assert fallback.stdout.count("not used: MODSCOPE_INTERPOSE=0 is set") == 9
    assert "To use the interception points, unset MODSCOPE_INTERPOSE." in fallback.stdout


@pytest.mark.parametrize(
    ("word", "why", "named"),
    [
        ("virtual", "a virtual GPU needs another torch", "virtual GPU"),
        ("collectives", "torch exports no backend of torch.distributed", "collectives"),
        ("collectives", "verified, but for reduce, which this torch launches in another way", "collectives"),
        ("tensors", "not learned", "tensors"),
    ],
)
def test_everything_is_verified_only_where_everything_works(word, why, named):
    points = ("calls", "nodes", "blocks", "saved", "resizes", "stacks", "forward", "fsdp", "ddp", "collectives")
    report = dict.fromkeys(points, "verified") | dict.fromkeys(("modscope", "torch", "python", "system"), "1")
    report |= {"layout": "learned", "tensors": "learned", "virtual": CAN_BE_INSTALLED}
    screen = Screen(wraps=False)
    assert describe(report, screen)[-1].endswith("There is nothing to do.")
    last = describe({**report, word: why}, screen)[-1]
    assert last == f"No fallback is used, but not everything works here: {named}. The lines above say why."


def test_the_two_differ(interception, fallback):
    assert interception.stdout != fallback.stdout


def test_nothing_goes_to_stderr(interception, fallback):
    assert interception.stderr == fallback.stderr == ""


def test_an_unknown_word(capsys):
    assert main(["nonsense"]) != 0
    assert "doctor" in capsys.readouterr().err


def test_help(capsys):
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    assert "doctor" in capsys.readouterr().out


def test_without_torch_it_says_what_to_install(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
    done = modscope("doctor", PYTHONPATH=path)
    assert "install" in done.stdout + done.stderr
    assert "torch" in done.stdout + done.stderr
