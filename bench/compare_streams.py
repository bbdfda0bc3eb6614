"""Compare the blocks of a predicted job with those of the real one: which sizes were allocated how often, and where the
order first differs. The sizes name the operator that causes an error of a prediction.

    python bench/compare_streams.py JOBS.py NAME [--own-table] [--order N]

The real blocks are in h200/NAME.npz beside JOBS.py. Sizes are rounded up to 512 bytes.
"""

from __future__ import annotations

import argparse
import difflib
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy

HERE = Path(__file__).parent


def rounded(bytes: int) -> int:
    return max(512, -(-bytes // 512) * 512)


def real_sizes(path: Path) -> list[int]:
    trace = numpy.load(path)
    return [rounded(int(bytes)) for kind, bytes in zip(trace["kind"], trace["size"], strict=True) if kind == 0]


def predicted_blocks(options: argparse.Namespace) -> list[tuple[int, str]]:
    """The bytes and the operator of each block; the operator before it for blocks that no operator allocates."""
    with tempfile.NamedTemporaryFile(suffix=".json") as log:
        command = [sys.executable, str(HERE / "predict_job.py"), str(options.jobs), options.name, "--log", log.name]
        if options.own_table:
            command += ["--own-table", str(options.jobs.parent / "h200" / f"{options.name}.ops.json")]
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        if ran.returncode:
            sys.exit(ran.stderr)
        return [(rounded(bytes), operator) for bytes, operator in json.load(log) if bytes]


def print_counts(predicted: list[tuple[int, str]], real: list[int]) -> None:
    print(f"{len(predicted)} blocks predicted, {len(real)} real")
    ours, theirs = Counter(bytes for bytes, _ in predicted), Counter(real)
    for bytes in sorted(set(ours) | set(theirs), reverse=True):
        if ours[bytes] != theirs[bytes]:
            print(
                f"{bytes:>14,} bytes: {ours[bytes]:>6} predicted, {theirs[bytes]:>6} real, "
                f"{ours[bytes] - theirs[bytes]:+}"
            )
            print(
                "    "
                + ", ".join(
                    f"{operator} {times}"
                    for operator, times in Counter(o for b, o in predicted if b == bytes).most_common(8)
                )
            )


def print_order(predicted: list[tuple[int, str]], real: list[int], most: int) -> None:
    """Where the order differs, with the blocks around it."""
    sizes = [bytes for bytes, _ in predicted]
    shown = 0
    for what, a, b, c, d in difflib.SequenceMatcher(None, sizes, real, autojunk=False).get_opcodes():
        if what != "equal" and shown < most:
            shown += 1
            print(
                f"after {predicted[max(a - 2, 0) : a]} at {a}:\n    predicted {predicted[a:b][:8]}\n    real "
                f"{real[c:d][:8]}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("jobs", type=Path)
    parser.add_argument("name")
    parser.add_argument("--own-table", action="store_true", help="take workspaces from the job's own measurements")
    parser.add_argument(
        "--order", type=int, default=0, metavar="N", help="show the first N places where the order differs"
    )
    options = parser.parse_args()
    predicted = predicted_blocks(options)
    real = real_sizes(options.jobs.parent / "h200" / f"{options.name}.npz")
    print_counts(predicted, real)
    if options.order:
        print_order(predicted, real, options.order)


if __name__ == "__main__":
    main()
