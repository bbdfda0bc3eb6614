#!/usr/bin/env python3
"""How many instructions the core spends on a module call and on a backward node.

    core_instructions.py DRIVER

Runs DRIVER (bench/core_driver.c) under callgrind with two values of N and prints the
difference divided by the difference of N, so what happens once is not counted. Only what
runs inside the core's functions counts, not the driver's loop. The numbers are the same
on every run with the same compiler.
"""
import argparse
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

GOAL = 150
FEW, MANY = 30_000, 90_000
EVENTS = [
    ("module call (enter and leave)", "calls"),
    ("backward node (enter, look up and leave)", "nodes"),
]


def instructions(driver, mode, count, folder):
    """All instructions of one run."""
    command = [
        "valgrind",
        "--tool=callgrind",
        "--toggle-collect=ms_call_*",
        "--toggle-collect=ms_node_*",
        f"--callgrind-out-file={folder / f'{mode}.{count}.out'}",
        str(driver),
        mode,
        str(count),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    collected = re.search(r"Collected\s*:\s*(\d+)", done.stderr)
    if done.returncode or not collected or collected.group(1) == "0":
        sys.exit(f"core_instructions: {' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
    return int(collected.group(1))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("driver", type=pathlib.Path, help="what bench/core_driver.c was built to")
    driver = parser.parse_args().driver
    if not shutil.which("valgrind"):
        print("core_instructions: skipped, valgrind is not installed")
        return
    print("| event | instructions | goal |")
    print("|---|---|---|")
    with tempfile.TemporaryDirectory() as name:
        for title, mode in EVENTS:
            few, many = (instructions(driver, mode, count, pathlib.Path(name)) for count in (FEW, MANY))
            print(f"| {title} | {(many - few) / (MANY - FEW):.1f} | under {GOAL} |")


if __name__ == "__main__":
    main()
