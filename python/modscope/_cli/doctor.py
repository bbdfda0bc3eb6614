"""``modscope doctor``: whether modscope works with the torch that is installed here."""

from __future__ import annotations

from argparse import Namespace

from modscope._cli.command import Command, Load, Parser, Report
from modscope._show.terminal import Screen


def add_options(parser: Parser) -> None:
    """It has none."""


def report(arguments: Namespace, load: Load) -> Report:
    import modscope

    return dict(modscope.doctor())


def text(result: Report, screen: Screen, arguments: Namespace) -> list[str]:
    from modscope._torch.doctor import describe

    return describe(result, screen)


COMMAND = Command(("doctor",), add_options, report, text, figures="what is verified")
