"""``modscope help``: what a word of the command line means."""

from __future__ import annotations

from typing import NamedTuple


class Topic(NamedTuple):
    about: str
    text: str


TOPICS = {
    "moments": Topic(
        "the moments that --at takes",
        """\
--at MOMENT chooses the moment that a command shows:
  peak          when the device held the most bytes (the default)
  oom           when the last allocation failed
  step:N        the end of training step N; 0 is before the first step
  time:SECONDS  so many seconds after the recording began""",
    ),
    "steps": Topic(
        "what a step is",
        """\
A step is one training step, from the beginning of its forward to the beginning
of the next one's. Steps are counted from 1; step 0 is everything before the first.
An optimizer step is one call of optimizer.step().
A forward under no_grad or inference_mode begins no step. Between an optimizer step
and the next step it is evaluation, and counts as part of the step before it.""",
    ),
    "devices": Topic(
        "which device is shown",
        """\
--device D chooses a device by its name, such as cuda:0, or by the beginning of
its name if no other name begins like it.
The default is the accelerator with the highest peak, else cpu. At a moment other
than the peak it is the accelerator that holds most then, else cpu; at oom it is
the device on which the allocation failed.""",
    ),
    "categories": Topic(
        "categories, owners, own and subtree bytes",
        """\
Every block of memory has a category:
  Parameter   a parameter of a module
  Buffer      a buffer of a module
  Gradient    the .grad of a parameter
  Activation  allocated in a forward, in a recompute or outside any module
  Temp        allocated in a backward or in an optimizer step
  Optstate    the state of an optimizer
  Other       anything else, such as memory from numpy
The owner of a block is the module that it is attributed to. Global owns what
was allocated outside any module. "Own" bytes are a module's without its
children's; "Subtree" bytes are with them.""",
    ),
    "json": Topic(
        "what --json prints",
        """\
--json prints the exact figures for programs: bytes are ints, times are seconds.
Equal rows are not grouped. "is_lower_bound" is true where events were lost or
damaged: every figure is then "at least". A list of categories always has all of
them and "Total". New keys may be added; no key changes its meaning.
In Python, modscope.load(FILE) gives the same figures.""",
    ),
}


def describe_topics() -> str:
    width = max(map(len, TOPICS))
    lines = (f"  {word:{width}}  {topic.about}" for word, topic in TOPICS.items())
    return "\n".join(["modscope help TOPIC explains:", *lines, "", "modscope COMMAND --help explains a command."])
