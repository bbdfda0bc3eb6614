"""The commands of docs/tutorial-fsdp2.md exist with their options, name files that exist or that a command before them
writes, and the example runs on two ranks over gloo."""

import pathlib
import re
import shlex

import pytest
import warm_python

ROOT = pathlib.Path(__file__).parents[3]
COMMANDS = [
    shlex.split(line[2:])
    for line in (ROOT / "docs" / "tutorial-fsdp2.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("$ ")
]


def modscope_part(words: list[str]) -> list[str]:
    """The words after "modscope", of a command that may be torchrun's."""
    return words[words.index("modscope") + 1 :]


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_every_command_of_the_tutorial_has_its_options(words, capsys):
    from modscope.__main__ import main

    command, *rest = modscope_part(words)
    try:
        main([command, "--help"])
    except SystemExit as ended:
        assert not ended.code
    known = capsys.readouterr().out
    script = next((at for at, word in enumerate(rest) if word.endswith(".py")), len(rest))
    for option in (word for word in rest[:script] if word.startswith("-")):
        assert re.search(rf"(?<![\w-]){re.escape(option)}(?![\w-])", known), option
    example = (ROOT / "examples" / "fsdp2.py").read_text(encoding="utf-8")
    assert all(f'"{word}"' in example for word in rest[script + 1 :])


def test_every_file_of_the_tutorial_exists_or_was_written_before():
    written: set[str] = set()
    assert len(COMMANDS) > 5
    for words in COMMANDS:
        for word in words:
            if word.endswith(".py"):
                assert (ROOT / word).is_file(), word
            elif word.endswith(".msc") and words[words.index(word) - 1] != "-o":
                assert word in written, word
        rest = modscope_part(words)
        if words[0] == "torchrun":
            count = int(words[words.index("--nproc-per-node") + 1])
            written |= {f"modscope-fsdp2.rank{rank}.msc" for rank in range(count)}
        elif "-o" in rest and "--ranks" in rest:
            written.add(rest[rest.index("-o") + 1].replace(".msc", ".rank0.msc"))


@pytest.mark.slow
def test_the_example_runs_on_two_ranks_over_gloo(tmp_path):
    import modscope

    words = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
        "modscope",
        "run",
        str(ROOT / "examples" / "fsdp2.py"),
    ]
    # two ranks need two GPUs, or none
    ran = warm_python.run([*words, "--small", "--steps", "1"], tmp_path, CUDA_VISIBLE_DEVICES="")
    assert ran.returncode == 0, ran.stderr
    captures = [modscope.load(str(tmp_path / f"modscope-fsdp2.rank{rank}.msc")) for rank in range(2)]
    assert [capture.info["world"] for capture in captures] == ["2", "2"]
    # parameters in float32: embedding and head, layers, norms
    whole = 4 * (2 * 1024 * 256 + 4 * (4 + 9) * 256 * 256 + 9 * 256)
    for capture in captures:
        assert capture.snapshot("peak").kinds["cpu"]["Sharded Param"] == whole // 2
