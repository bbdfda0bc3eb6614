"""What the command refuses, and how it says so."""

import os
import py_compile
import subprocess
import sys

import pytest
from modscope.__main__ import main
from modscope._cli import predict as predict_command
from modscope._cli import run
from modscope._cli.command import parse, parser_of
from modscope._predict.options import PredictOptions, records_of
from modscope._record.options import ScriptOptions
from modscope._record.settings import Settings
from predict_helpers import needs_virtual_gpu, predict, training, write


@pytest.mark.parametrize(
    "words, sentence",
    [
        ("", "no script is given. Use: modscope predict script.py, or modscope predict -m module"),
        ("--gpu h10 x.py", "'h10' is not a GPU that is known (did you mean h100?): use one of t4, "),
        ("--gpu h100,nothing x.py", "'nothing' is not a GPU that is known"),
        ("--gpu , x.py", "argument --gpu: needs the name of a GPU, or all"),
        ("--gpu 1MiB x.py", "a GPU of 1MiB is smaller than 1 GiB: give its memory as 24GiB"),
        ("--gpu h100 --steps 0 x.py", "'0' is not a number of steps: give 1 or more"),
        ("--gpu h100 --seconds soon x.py", "'soon' is not a number of seconds: give 60, or 0 for no limit"),
        ("--gpu h100 --selected half x.py", "'half' is not a fraction: give a number from 0 to 1, such as 0.15"),
        ("--gpu h100 --selected 1.5 x.py", "'1.5' is not a fraction: give a number from 0 to 1, such as 0.15"),
        (
            "--gpu h100 --torch newest x.py",
            "--torch: 'newest' is not a version of torch that is known: give 2.0 or newer, such as 2.11",
        ),
        (
            "--gpu h100 --torch 1.2 x.py",
            "--torch: '1.2' is not a version of torch that is known: give 2.0 or newer, such as 2.11",
        ),
        ("--gpu h100 --table nowhere.json x.py", "there is no table nowhere.json"),
        (
            "--gpu h100 --json nowhere/x.json x.py",
            "--json nowhere/x.json: it is a folder, or its folder does not exist",
        ),
        ("--gpu h100,a100 -o x.msc x.py", "-o and -f need one GPU, such as --gpu h100"),
        ("-o x.msc x.py", "-o and -f need one GPU, such as --gpu h100"),
        ("--gpu h100,a100 --check x.py", "--check compares one GPU with the one of this machine"),
        (
            "--gpu h100,a100 -",
            "a script that is read from stdin can be run once: give one GPU and one rank, without --check",
        ),
    ],
)
def test_wrong_arguments(words, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["predict", *words.split()])
    assert left.value.code == 2 and "modscope predict: error: " in (err := capsys.readouterr().err) and sentence in err


def test_wrong_settings_of_the_allocator(capsys, monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "nonsense:1")
    with pytest.raises(SystemExit):
        main(["predict", "--gpu", "h100", "x.py"])
    assert "PYTORCH_CUDA_ALLOC_CONF=nonsense:1: 'nonsense' is not a key that is known" in capsys.readouterr().err


@pytest.mark.parametrize("gpus", ["h100", "h100,a100"])
def test_a_script_that_is_not_there(gpus, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["predict", "--gpu", gpus, "x.py"]) == 2
    assert capsys.readouterr().err == "modscope: There is no script x.py\n"


def test_the_help_has_the_gpus_and_examples(capsys):
    for words in (["predict", "--help"], ["help", "predict"]):
        with pytest.raises(SystemExit) as left:
            main(words)
        out = capsys.readouterr().out
        assert left.value.code == 0 and "rtx4090" in out and "\n  modscope predict --gpu all train.py\n" in out
        assert "--part" not in out and "--real" not in out


@pytest.mark.slow
def test_check_needs_a_gpu(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    ran = predict(tmp_path, "--check", write(tmp_path, "print('ran')"))
    assert (ran.status, ran.out) == (1, "")
    assert (
        ran.err
        == "modscope: --check needs a GPU that torch can use, and finds none here. Leave it out to predict only\n"
    )


@pytest.mark.slow
@needs_virtual_gpu
def test_a_table_that_cannot_be_used_stops_the_script(tmp_path):
    (tmp_path / "table.json").write_text("not a table")
    ran = predict(tmp_path, "--gpu", "h100", "--table", "table.json", training(tmp_path, "print('ran')"))
    assert (ran.status, ran.out) == (1, "") and ran.said[0].startswith(
        "the script was not run, because there can be no virtual GPU here: "
    )
    assert not [*tmp_path.glob("*.msc")]


@pytest.mark.slow
@needs_virtual_gpu
def test_the_fallback_has_no_virtual_gpu(tmp_path):
    ran = predict(tmp_path, "--gpu", "h100", training(tmp_path, "print('ran')"), MODSCOPE_INTERPOSE="0")
    assert (ran.status, ran.out) == (1, "") and not [*tmp_path.glob("*.msc")]
    assert ran.said == [
        "the script was not run, because there can be no virtual GPU here: a virtual GPU needs modscope's "
        "interception: unset "
        "MODSCOPE_INTERPOSE"
    ]


@pytest.mark.slow
@needs_virtual_gpu
@pytest.mark.parametrize("gpus", ["h100", "h100,h200"])
def test_selected_says_how_much_of_an_unknown_mask_is_true(gpus, tmp_path):
    script = write(tmp_path, "import torch; print((torch.rand(1000, device='cuda') > 0.3).nonzero().shape)")
    ran = predict(tmp_path, "--gpu", gpus, "--selected", "0.2", script)
    assert (ran.status, ran.out) == (0, "torch.Size([200, 1])\n"), ran.err


def test_the_records_that_reach_the_script_have_the_names_of_options():
    """A field that no option fills, or that is filled under another name, would always have its default."""
    dests = {
        name: {action.dest for action in parser_of(name, "do something", command).actions}
        for name, command in (("run", run.COMMAND), ("predict", predict_command.COMMAND))
    }
    assert {*ScriptOptions._fields} - dests["run"] == {"target", "environment"}
    assert {*PredictOptions._fields} - dests["predict"] == {
        "gpus", "part", "messages", "real", "read_before", "activation_budget"
    }  # fmt: skip


def test_what_was_asked_reaches_the_script_as_it_is():
    words = [
        "-o",
        "x.msc",
        "--steps",
        "7",
        "--stacks",
        "2",
        "--ranks",
        "8",
        "--rank",
        "3",
        "--reshard",
        "no",
        "a.py",
        "-q",
    ]
    arguments = parse("predict", "do something", predict_command.COMMAND, words)
    script, prediction = records_of(arguments)
    assert script == ScriptOptions(["a.py", "-q"], output="x.msc", steps=7, stacks=2)
    assert prediction == PredictOptions(seconds=60.0, ranks=8, rank=3, reshard="no")
    passed = Settings(script, 1, prediction=list(prediction))
    read = Settings.of_text(passed.to_environment()["MODSCOPE_RUN"])
    assert (read.options, PredictOptions(*read.prediction)) == (script, prediction)


def test_bytecode_is_kept_in_a_folder_of_its_own_where_python_keeps_none_beside_torch(tmp_path):
    libraries = tmp_path / "libraries"
    (libraries / "torch" / "_dynamo").mkdir(parents=True)
    for module in ("torch", "torch/_dynamo"):
        write(libraries / module, "", "__init__.py")
    program = "import sys; from modscope._predict import bytecode; bytecode.keep(); print(sys.pycache_prefix, end='')"

    def prefix(**environment):
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPYCACHEPREFIX"}
        environment = {**inherited, "XDG_CACHE_HOME": str(tmp_path / "cache"), **environment}
        environment["PYTHONPATH"] = os.pathsep.join([str(libraries), os.environ.get("PYTHONPATH", "")])
        ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
        return ran.stdout or ran.stderr

    own = str(tmp_path / "cache" / "modscope" / "bytecode")
    assert prefix(PYTHONDONTWRITEBYTECODE="1") == own
    assert prefix(PYTHONDONTWRITEBYTECODE="") == "None"  # Python keeps it beside torch
    assert prefix(PYTHONDONTWRITEBYTECODE="1", PYTHONPYCACHEPREFIX=str(tmp_path / "x")) == str(tmp_path / "x")
    dynamo = libraries / "torch" / "_dynamo"
    compiled = dynamo / "__pycache__" / f"__init__.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(dynamo / "__init__.py"), str(compiled))
    assert prefix(PYTHONDONTWRITEBYTECODE="1") == "None"
