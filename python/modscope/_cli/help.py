"""``modscope help``: what a word of the command line means."""

from __future__ import annotations

from argparse import Namespace
from typing import NamedTuple

from modscope._cli.command import Command, Load, Parser
from modscope._cli.json_schema import schema
from modscope._read.types import Refused
from modscope._show.output_file import as_text
from modscope._show.terminal import Screen

SHELLS = ("bash", "zsh", "fish")


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
An optimizer step is one call of optimizer.step(). It ends the step; of several
optimizers that step in turn, as a GAN's, the last one does. For --steps in a program
without an optimizer a backward ends it.
A forward under no_grad or inference_mode begins no step. Between an optimizer step
and the next step it is evaluation, and counts as part of the step before it.
--steps N stops a script after N steps, in every command that runs one.
--only-steps A:B chooses the steps that modscope report shows.""",
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
Every block of memory has a category, by the phase of its allocation and by
what holds it:
  Parameter   a parameter of a module
  Buffer      a buffer of a module
  Gradient    the .grad of a parameter
  Activation  allocated in forward, recompute or evaluation, or saved by autograd
  Temp        allocated in backward or in an optimizer step
  Optstate    the state of an optimizer
  Other       allocated in idle, such as data and metrics; memory from numpy;
              what was one of the above, if its object no longer holds it
The owner of a block is the module that it is attributed to. Global owns what
was allocated outside any module. "Own" bytes are a module's without its
children's; "Subtree" bytes are with them.""",
    ),
    "json": Topic(
        "what --json prints",
        """\
--json prints one JSON object on stdout instead of the text. --json=OUT writes it
to a file, and the text is printed too. (--json OUT.json is the same, if the name
ends in .json.) An older file of this kind is replaced, another one is not.
What a script prints goes to stderr then, so that stdout has the object alone:
  modscope predict --json --gpu h100 train.py > result.json
"command" is the command's name. Figures are exact: bytes are ints, times are
seconds. Equal rows are not grouped. "is_lower_bound" is true where events were lost or
damaged: every figure is then "at least". A list of categories always has all of
them and "Total". New keys may be added; no key changes its meaning while "schema",
the version of all this, has the same number.
modscope help json --schema prints a JSON Schema (draft 2020-12) for the objects of
all commands, with what each key is, and what it means where it is null.
In Python, modscope.load(FILE) gives the same figures; to_dict() of it, and of what
it returns, is ready for JSON.""",
    ),
    "predictions": Topic(
        "what modscope predict --json prints",
        """\
The result of a prediction on one GPU has these keys; bytes are ints.
  command, schema                   predict, and the version of these keys
  gpu, title, memory, context       the GPU, its memory, what a context takes
  device                            the one that the script used, such as cuda:0
  may_reserve                       what torch may reserve of it
  reserved_peak, allocated_peak     the most that was reserved, and allocated
  fits, to_spare                    whether it has enough, by these figures; what
                                    is left, or null. Both null: the script failed
                                    before its first optimizer step
  verdict                           "fits", "does not fit", or "too close to tell":
                                    then figures may be off by more than is left
  margin, why                       by how many bytes they may be off, and of a
                                    verdict that is open, what is not sure
  retries, retries_per_step         how often the allocator gave memory back so
                                    that it fits, in all and in the last step
  reserved_unlimited                what a GPU with more memory would reserve, or
                                    null where memory ran out
  reserved_if_larger                several GPUs: the same as reserved_unlimited
  nvidia_smi                        what it shows: about, low, high, and its parts
  step_ms                           the time of a step in milliseconds, or null
  seconds, steps                    how long it took, how many steps it has
  are_optimizer_steps               whether these are steps of one optimizer of
                                    several, which do not step in turn
  peak, reserved_at_peak            step, phase, module of the allocated peak,
                                    and what was reserved then
  reserved_moment                   when most was reserved, if at another time
  out_of_memory                     null, or requested, allocated, reserved,
                                    step, phase, module, count (how many)
  ended, error, status, timed_out   how the script ended
  torch, allocator                  whose rules, and PYTORCH_CUDA_ALLOC_CONF
  bytes_without_rule                bytes of operators without a rule
  workspaces                        bytes of workspaces by the source of their size,
                                    at the peak and in all
  notes, capture                    what was done in another way; the capture's path
  compiled                          null, or what torch.compile compiled: graphs,
                                    graph_breaks, recompiles, and why some or all
                                    ran uncompiled
  ranks                             with --ranks: size, rank, per_node, NCCL's
                                    communicators and their bytes, bytes by
                                    collective
Of several ranks it has "ranks", a list of these, and "seconds" of all together.
Of several GPUs it has "gpus", a list of these, and "seconds" of all together.
With --check it has "check": the same figures of the real GPU, their "errors", and
the "row" that --share writes.""",
    ),
}


def add_options(parser: Parser) -> None:
    parser.add_argument("topic", metavar="TOPIC", nargs="?", help=f"a command, or one of: {', '.join(TOPICS)}")
    about = "with json: print a JSON Schema for what --json of all commands prints"
    parser.add_argument("--schema", action="store_true", help=about)
    parser.add_argument("--completion", choices=SHELLS, help="print the completion of commands and options for a shell")
    parser.add_argument("--man", action="store_true", help="print the man page, for man -l")


def report(arguments: Namespace, load: Load) -> str:
    if arguments.schema:
        if arguments.topic != "json":
            arguments.error("--schema goes with json:  modscope help json --schema")
        return as_text(schema())
    if arguments.completion or arguments.man:
        from modscope._cli.completion import completion_for, man_page

        return completion_for(arguments.completion) if arguments.completion else man_page()
    if arguments.topic is None:
        width = max(map(len, TOPICS))
        lines = (f"  {word:{width}}  {topic.about}" for word, topic in TOPICS.items())
        return "\n".join(["modscope help TOPIC explains:", *lines, "", "modscope COMMAND --help explains a command."])
    if arguments.topic not in TOPICS:
        raise Refused(f"There is no help on {arguments.topic!r}. The topics are: {', '.join(TOPICS)}", 2)
    return TOPICS[arguments.topic].text


def text(result: str, screen: Screen, arguments: Namespace) -> list[str]:
    return [result] if arguments.schema or arguments.completion or arguments.man else Screen(screen.width).fill(result)


COMMAND = Command(("help moments", "help json --schema"), add_options, report, text, figures="")
