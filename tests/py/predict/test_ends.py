"""However a script ends on a virtual GPU: what is said, what is written, and the exit status."""

import json
import re
import signal

import modscope
import pytest
from predict_helpers import interrupt_when_ready, needs_virtual_gpu, predict, predict_apart, training, write

pytestmark = [pytest.mark.slow, needs_virtual_gpu]

ENDLESS = """
    import torch
    loss = torch.ones(10, device="cuda").sum()
    print("ready", flush=True)
    while not loss > 1:
        loss = loss + 1
"""


def only_capture(folder):
    (path,) = folder.glob("*.msc")
    return modscope.load(path)


def test_a_loop_that_needs_values_is_ended_by_seconds(tmp_path):
    ran = predict(tmp_path, "--gpu", "t4", "--seconds", "1", write(tmp_path, ENDLESS))
    assert ran.status == 0 and ran.out == "ready\n"
    assert ", until it was stopped after 1 s, as --seconds says. cuda:0 reserves 2.00 MiB" in ran.said[0]
    assert only_capture(tmp_path).end["how"] == "stopped" and only_capture(tmp_path).end["by"] == "--seconds 1"


def test_seconds_end_a_script_that_catches_everything(tmp_path):
    script = write(
        tmp_path,
        """
        import torch
        x = torch.ones(10, device="cuda")
        while True:
            try:
                while True:
                    x = x + 1
            except BaseException as error:
                print(repr(error), flush=True)
    """,
    )
    ran = predict(tmp_path, "--gpu", "t4", "--seconds", "1", "--json", "x.json", script)
    assert (
        ran.status == 0
        and ran.out.startswith("SystemExit()\n")
        and "until it was stopped after 1 s, as --seconds says" in ran.said[0]
    )
    assert json.loads((tmp_path / "x.json").read_text())["timed_out"] == 1


def test_ctrl_c(tmp_path):
    ran = interrupt_when_ready(tmp_path, "--gpu", "t4", write(tmp_path, ENDLESS))
    assert ran.status == -signal.SIGINT and "KeyboardInterrupt" in ran.err
    assert ", when it was interrupted. " in ran.said[0] and " so far it fits, " in ran.said[1]
    assert only_capture(tmp_path).end["how"] == "interrupted"


def test_ctrl_c_while_several_gpus_are_predicted(tmp_path):
    ran = interrupt_when_ready(tmp_path, "--gpu", "t4,h100", write(tmp_path, ENDLESS))
    assert ran.status == -signal.SIGINT and "GPU " not in ran.err and not [*tmp_path.glob("*.msc")]


def test_an_exception_of_the_script(tmp_path):
    ran = predict(tmp_path, "--gpu", "t4", "--json", "x.json", training(tmp_path, "step(); raise ValueError('mine')"))
    assert ran.status == 1 and "ValueError: mine" in ran.err
    assert ", until the script failed (ValueError: mine). " in ran.said[0] and " so far it fits, " in ran.said[1]
    result = json.loads((tmp_path / "x.json").read_text())
    assert (result["ended"], result["error"], result["steps"], result["fits"]) == (
        "exception",
        "ValueError: mine",
        1,
        True,
    )


def test_a_script_that_fails_before_its_first_step(tmp_path):
    ran = predict(tmp_path, "--gpu", "t4", training(tmp_path, "raise ValueError('mine')"))
    assert ran.status == 1 and "fits," not in ran.err
    assert (
        ran.said[0]
        == "the script failed before its first optimizer step, so whether it fits is not known: ValueError: mine."
    )
    several = predict(tmp_path, "--gpu", "t4,h100", "--json", "x.json", "train.py")
    assert [gpu["fits"] for gpu in json.loads((tmp_path / "x.json").read_text())["gpus"]] == [None, None]
    assert (
        several.status == 1 and several.err.count("not known: the script failed before its first optimizer step") == 2
    )
    assert (
        "The script failed (ValueError: mine): what would follow is not known." in several.err
        and "ValueError: mine\n" in several.err
    )


def test_a_script_that_fails_before_it_uses_a_gpu(tmp_path):
    script = write(tmp_path, "import os, torch; os.environ['LOCAL_RANK']")
    ran = predict(tmp_path, "--gpu", "t4", "--json", "x.json", script)
    result = json.loads((tmp_path / "x.json").read_text())
    assert (result["fits"], result["to_spare"], result["error"]) == (None, None, "KeyError: 'LOCAL_RANK'")
    assert ran.status == 1 and ran.said == [
        "the script failed before its first optimizer step, so whether it fits is not known: KeyError: 'LOCAL_RANK'.",
        "torchrun would set LOCAL_RANK. Say how many ranks the script is to have, such as --ranks 8.",
    ]
    several = predict(tmp_path, "--gpu", "t4,h100", script)
    assert (
        several.status == 1
        and several.said[0] == "the script failed before it used a GPU: KeyError: 'LOCAL_RANK'."
        and len(several.said) == 2
    )


def test_the_exit_status_is_the_script_s(tmp_path):
    script = training(tmp_path, "step(); sys.exit(7)")
    ran = predict(tmp_path, "--gpu", "t4", script)
    assert ran.status == 7 and ran.said[0].startswith("predicted 1 step in ")
    assert predict(tmp_path, "--gpu", "t4,v100-16gb", script).status == 7


def test_a_script_without_a_gpu(tmp_path):
    ran = predict(
        tmp_path, "--gpu", "t4", "--json", "x.json", write(tmp_path, "import torch; x = torch.ones(1_000_000)")
    )
    assert ran.status == 0 and ran.said[0].endswith('The script used no GPU: it uses one where its device is "cuda".')
    assert not [*tmp_path.glob("*.msc")] and json.loads((tmp_path / "x.json").read_text())["reserved_peak"] == 0


def test_a_script_without_torch(tmp_path):
    ran = predict_apart(tmp_path, "--gpu", "t4", write(tmp_path, "print('hello')"))
    assert (ran.status, ran.out) == (0, "hello\n") and ran.said == [
        "script.py did not import torch, so no capture was written."
    ]
    ran = predict_apart(tmp_path, "--gpu", "t4,h100", "script.py")
    assert ran.status == 0 and ran.said == ["script.py did not import torch, so there is nothing to predict."]


def test_an_earlier_result_does_not_stay(tmp_path):
    (tmp_path / "x.json").write_text('{"command": "predict"}')
    predict(tmp_path, "--gpu", "t4", "--json", "x.json", write(tmp_path, "print('hello')"))
    assert not (tmp_path / "x.json").exists()


def test_a_file_that_holds_no_figures_is_not_replaced(tmp_path):
    (tmp_path / "x.json").write_text("{}")
    ran = predict(tmp_path, "--gpu", "t4", "--json=x.json", write(tmp_path, "print('hello')"))
    assert (ran.status, ran.out) == (1, "") and "x.json exists already: choose another name" in ran.err
    assert (tmp_path / "x.json").read_text() == "{}"


def test_time_that_is_up_before_the_gpu_is_used_is_said(tmp_path):
    less = "import modscope._predict.in_script as a; a._BEFORE_USE = 0.5"  # instead of a minute
    script = write(tmp_path, f"{less}\nimport torch, time\nwhile True: time.sleep(0.01)")
    ran = predict(tmp_path, "--gpu", "h100", "--seconds", "0.5", script)
    sentence = "script.py had not used the GPU after 0.5 s (--seconds gives it more, or no limit with 0)"
    assert ran.status == 1 and ran.said == [f"{sentence}, so no capture was written."]
    several = predict(tmp_path, "--gpu", "h100,a100", "--seconds", "0.5", script)
    assert several.status == 1 and several.said == [f"{sentence}, so there is nothing to predict."]


def test_time_counts_from_the_first_use_of_the_gpu(tmp_path):
    """What precedes it has a minute or as much time, so that a script that never uses the GPU ends, too."""
    script = training(
        tmp_path,
        """
        import time
        while True:
            step()
            time.sleep(0.01)
        """,
    )
    begin = "import time\nbegan = time.monotonic()\nwhile time.monotonic() - began < 4: time.sleep(0.01)\n"
    path = tmp_path / script
    path.write_text(begin + path.read_text())
    ran = predict(tmp_path, "--gpu", "h100", "--steps", "100000", "--seconds", "3", script)
    assert ran.status == 0 and ", until it was stopped after 3 s, as --seconds says." in ran.said[0]
    waited = float(re.search(r"in (\d+(\.\d+)?) s, until", ran.said[0])[1])
    assert waited >= 6.5, "the script had all of its time on the GPU"
