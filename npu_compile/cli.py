"""The `npu-compile` command. A subcommand is one entry of ``COMMANDS``; it imports what it needs when run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """``run`` gets the parsed arguments and returns the exit code; ``arguments`` adds them."""

    help: str
    run: Callable[[argparse.Namespace], int]
    arguments: Callable[[argparse.ArgumentParser], None] = lambda parser: None


def _doctor(_: argparse.Namespace) -> int:
    from .doctor import doctor

    return doctor()


def _options(_: argparse.Namespace) -> int:
    from .options import markdown_table

    print(markdown_table(), end="")
    return 0


def _plan(given: argparse.Namespace) -> int:
    from .planning.command import run

    return run(given)


def _plan_arguments(parser: argparse.ArgumentParser) -> None:
    from .planning.command import arguments

    arguments(parser)


def _explain_arguments(parser: argparse.ArgumentParser) -> None:
    from .planning.command import folder_arguments

    folder_arguments(parser)


COMMANDS = {
    "doctor": Command("say what is installed, what will run where, and what is wrong", _doctor),
    "options": Command("list what torch.compile's options= takes", _options),
    "plan": Command("say what becomes of a model's attention, from its config alone", _plan, _plan_arguments),
    "explain": Command("the plan of a local model folder", _plan, _explain_arguments),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line ``argv`` (``sys.argv[1:]`` by default); returns the exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    parser = argparse.ArgumentParser("npu-compile", description="A torch.compile backend for Ascend NPUs")
    commands = parser.add_subparsers(required=True)
    for name, command in COMMANDS.items():
        sub = commands.add_parser(name, help=command.help, description=command.help)
        # Only the command that is run may import torch: the doctor works where that fails.
        if name in given[:1]:
            command.arguments(sub)
        sub.set_defaults(run=command.run)
    arguments = parser.parse_args(given)
    return int(arguments.run(arguments))


if __name__ == "__main__":
    raise SystemExit(main())
