"""`modscope leaks`: blocks that survive, and owners that grow."""

import pytest
from capture_helpers import Capture


def test_leaks(text, figures):
    (group,) = figures("leaks leaky.msc")["groups"]
    assert group == {
        "device": "cuda:0",
        "module": "GPT.h.11.mlp",
        "category": "Activation",
        "bytes": 4_000_000,
        "count": 4,
        "steps": 4,
        "first_step": 1,
        "last_step": 4,
        "outside": 0,
        "phases": ["forward"],
        "lines": [],
        "sizes": [{"bytes": 1_000_000, "count": 4}],
    }
    out = text("leaks leaky.msc")
    assert "3.81 MiB from earlier steps is still held at the end of step 5" in out
    assert "Activation of GPT.h.11.mlp" in out and "4 blocks allocated in 4 steps (1 to 4), in forward" in out
    assert "4 x 976.56 KiB" in out


def growing(steps: int, grows_in=lambda step: True) -> bytes:
    """What is held in Global is replaced in each step by a block that is larger or as large."""
    made, held, last = Capture(), 8 * 4096, None
    for step in range(1, steps + 1):
        made.step()
        held += 4096 * grows_in(step)
        new = made.add(held)
        if last is not None:
            made.drop(last)
        last = new
    return made.end(how="finished")


def test_growth_by_replacement(captures, text, figures):
    (captures / "growing.msc").write_bytes(growing(11))
    report = figures("leaks growing.msc")
    assert report["groups"] == [] and report["growth"] == [
        {
            "device": "cpu",
            "module": "Global",
            "category": "Activation",
            "bytes_per_step": 4096,
            "first_step": 1,
            "first_bytes": 9 * 4096,
            "last_step": 10,
            "last_bytes": 18 * 4096,
            "lines": [],
        }
    ]
    out = " ".join(text("leaks growing.msc").split())
    assert (
        "Activation of Global grows by 4.00 KiB a step on average, from 36.00 KiB after step 1 to 72.00 KiB after "
        "step 10"
    ) in out and "No leaks" not in out


@pytest.mark.parametrize(
    "steps, grows_in, first",
    [
        (1000, lambda step: True, 1),
        (21, lambda step: step % 6 > 0, 1),
        (41, lambda step: step > 18, None),
        (5, lambda step: True, 0),
        (20, lambda step: step % 2, 0),
        (20, lambda step: step < 15, 0),
    ],
)
def test_when_growth_is_reported(captures, figures, steps, grows_in, first):
    """``first``: 1 if it is of the whole run, None if it is of the second half, 0 if it is none."""
    (captures / "growing.msc").write_bytes(growing(steps, grows_in))
    growth = figures("leaks growing.msc")["growth"]
    assert [each["first_step"] > 1 if first is None else each["first_step"] for each in growth] == (
        [] if first == 0 else [first or True]
    )


def test_what_is_in_a_group_is_not_in_growth_too(figures):
    report = figures("leaks leaky.msc")
    assert report["groups"] and report["growth"] == []


def test_no_leaks(text, figures):
    """Parameters, optimizer state, and what the last step still holds are none."""
    assert "No leaks" in text("leaks train.msc")
    report = figures("leaks train.msc")
    assert report["groups"] == [] and report["step"] == 5


def test_too_few_steps_to_tell(text, figures):
    assert "Too few steps to tell" in text("leaks killed.msc")
    assert figures("leaks killed.msc")["step"] is None


def test_devices_without_a_name(tmp_path, text):
    c = Capture(("cpu",))
    c.add(100, 5)
    c.oom(1, 2, 3, 63)
    (tmp_path / "odd.msc").write_bytes(c.end())
    assert "device 5  100 B" in text(f"summary {tmp_path}/odd.msc")
    assert "Nothing is held" in text(f"tree {tmp_path}/odd.msc --at oom")
    assert "Wrote " in text(f"report {tmp_path}/odd.msc -o {tmp_path}/odd.html")


def test_leaks_of_different_sizes(tmp_path, figures):
    c = Capture()
    for step in range(1, 6):
        c.step()
        c.where("forward", c.module("Model"))
        c.add(1000 * step)
        c.where()
        c.add(64)
    (tmp_path / "sizes.msc").write_bytes(c.end())
    groups = figures(f"leaks {tmp_path}/sizes.msc")["groups"]
    assert [(group["module"], group["bytes"], group["count"]) for group in groups] == [
        ("Model", 6_000, 3),
        ("Global", 192, 3),
    ]


def test_what_was_made_in_two_steps_only_is_no_leak(tmp_path, figures):
    c = Capture()
    for step in range(1, 7):
        c.step()
        if step in (2, 5):
            c.add(1000)
    (tmp_path / "two.msc").write_bytes(c.end())
    assert figures(f"leaks {tmp_path}/two.msc")["groups"] == []


def test_kept_memory_from_outside_is_said_whole(captures, text):
    """Also in a narrow terminal: it says why torch's own figures do not show the leak."""
    made = Capture()
    for _ in range(8):
        made.step()
        made.add(1000, category="Other", outside=True)
    (captures / "outside.msc").write_bytes(made.end(how="finished"))
    assert "  from outside torch's allocators: numpy, mmap, shared memory\n" in text("leaks outside.msc", 80)
