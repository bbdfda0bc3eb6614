"""`modscope.metrics`: the memory of a loop's steps as numbers."""

import pytest
import warm_python
from helpers import INTERCEPTION

PROGRAM = """
import modscope, torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
assert modscope.metrics(model, optimizer) == {}
for rows in (512, 2048, 512):
    model(torch.ones(rows, 64)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    found = modscope.metrics()
    assert all(type(value) is int for value in found.values()), found
    words = "parameter buffer gradient activation temp optstate other".split()
    assert found["memory/peak"] == sum(found["memory/" + word] for word in words), found
    print(found["memory/peak"], found["memory/parameter"], found["memory/module/Sequential.N"], "memory/reserved" in found)
modscope.metrics.stop()
modscope.metrics.stop()
assert modscope.metrics() == {}
"""


def test_each_call_has_the_peak_since_the_one_before():
    ran = warm_python.run(["-c", PROGRAM])
    assert ran.returncode == 0, ran.stderr
    rows = [line.split() for line in ran.stdout.splitlines()]
    peaks = [int(row[0]) for row in rows]
    assert peaks[1] > 3 * peaks[0] > 0 and peaks[2] < peaks[1] / 2
    assert {row[1] for row in rows} == {str(4 * 2 * (64 * 64 + 64))} and all(int(row[2]) > int(row[1]) for row in rows)


@pytest.mark.skipif(not INTERCEPTION, reason="the virtual GPU needs interception")
def test_on_a_gpu_they_say_what_is_reserved():
    begin = "import modscope, torch\nmodscope.virtual_gpu('t4').__enter__(); torch.set_default_device('cuda')"
    ran = warm_python.run(["-c", PROGRAM.replace("import modscope, torch", begin)])
    assert ran.returncode == 0, ran.stderr
    assert [line.split()[3] for line in ran.stdout.splitlines()] == ["True"] * 3
