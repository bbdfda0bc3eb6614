#!/usr/bin/env python3
"""How many instructions the core executes for a module call, a backward node and a block.

    core_instructions.py DRIVER

Runs DRIVER (bench/core_driver.c) under callgrind with two values of N and prints the
difference of the instructions divided by the difference of N, so that initialization is not
counted. Only instructions inside the core's functions count, not the driver's loop. The numbers
are the same on every run with the same compiler. Then, without callgrind: how much memory the
ledger uses per live block, and whether it loses any of ten million blocks from eight threads.
"""

import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

FEW, MANY = 30_000, 90_000
CALL = ("ms_call_enter", "ms_call_leave")
NODE = ("ms_node_enter", "ms_node_leave")
BLOCK = ("ms_block_add", "ms_block_drop")
# The title, the driver's mode, the functions that are counted, how many such events one N has, the goal.
EVENTS = [
    ("module call (enter and leave)", "calls", CALL, 1, "under 150"),
    ("backward node (enter, look up and leave)", "nodes", NODE, 1, "under 150"),
    ("module call, in training steps", "steps", CALL, 1, ""),
    ("module call, in training steps, with a ledger", "steps-ledger", CALL, 1, ""),
    ("backward node, in training steps", "steps", NODE, 2, ""),
    ("backward node, in training steps, with a ledger", "steps-ledger", NODE, 2, ""),
    ("block of memory (make and free)", "blocks", BLOCK, 1, "under 300"),
]
LIVE_BLOCKS = [300, 1_000, 10_000, 100_000, 1_000_000]
PAIRS = 10_000_000


def run(command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        shown = " ".join(str(word) for word in command)
        sys.exit(f"core_instructions: {shown} failed ({done.returncode}):\n{done.stdout}{done.stderr}")
    return done


def instructions(driver, mode, functions, count, folder):
    """The instructions of one run inside these functions and the functions they call."""
    command = ["valgrind", "--tool=callgrind", *[f"--toggle-collect={function}" for function in functions]]
    command += [f"--callgrind-out-file={folder / f'{mode}.{count}.out'}", driver, mode, count]
    collected = re.search(r"Collected\s*:\s*(\d+)", run(command).stderr)
    if not collected or collected.group(1) == "0":
        sys.exit(f"core_instructions: callgrind counted no instruction of {functions} in '{mode}'")
    return int(collected.group(1))


def show_instructions(driver):
    if not shutil.which("valgrind"):
        print("core_instructions: instructions skipped, valgrind is not installed")
        return
    print("| event | instructions | goal |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for title, mode, functions, events, goal in EVENTS:
            few, many = (instructions(driver, mode, functions, n, pathlib.Path(name)) for n in (FEW, MANY))
            print(f"| {title} | {(many - few) / (MANY - FEW) / events:.1f} | {goal} |", flush=True)


def show_memory(driver):
    print("\n| live blocks | bytes of ledger per block | the most since half as many | goal |")
    print("|---|---|---|---|")
    for blocks in LIVE_BLOCKS:
        now, most = run([driver, "memory", blocks]).stdout.split()
        print(f"| {blocks:,} | {now} | {most} | at most 64 |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driver", type=pathlib.Path, help="the program built from bench/core_driver.c")
    driver = parser.parse_args().driver
    show_instructions(driver)
    show_memory(driver)
    print("\n" + run([driver, "threads", PAIRS]).stdout.strip())


if __name__ == "__main__":
    main()
