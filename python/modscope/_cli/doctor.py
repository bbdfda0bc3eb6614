"""``modscope doctor``: whether modscope works with the torch that is installed here."""

from __future__ import annotations

import json
from argparse import Namespace

from modscope._cli.command import Command, Load, Parser, Report
from modscope._show.terminal import Screen


def add_options(parser: Parser) -> None:
    what = "print only this machine's GPU as --gpu of other commands takes it from a file: save it as mine.json"
    parser.add_argument("--gpu-row", action="store_true", help=what)


def report(arguments: Namespace, load: Load) -> Report:
    import modscope

    if not arguments.gpu_row:
        return dict(modscope.doctor())
    if arguments.json:
        arguments.error("--gpu-row prints JSON itself: leave --json out")
    from modscope._virtual.device.properties import gpu_row

    row = gpu_row()
    if row is None:
        arguments.error("--gpu-row: there is no GPU here that torch can use")
    return row or {}


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    if arguments.gpu_row:
        return json.dumps(result, indent=2).splitlines()
    from modscope._torch.doctor import describe

    return describe(result, screen)


COMMAND = Command(("doctor", "doctor --gpu-row"), add_options, report, text, figures="what is verified")
