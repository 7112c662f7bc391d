"""`npu-compile plan`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..errors import AscendFiaError
from ..kernels.targets import Target


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", required=True, help="a model's config.json, or the folder it is in")
    _sizes(parser)


def folder_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", metavar="FOLDER", help="a local model: the folder with its config.json")
    _sizes(parser)


def _sizes(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(target.value for target in Target)
    parser.add_argument("--target", default=Target.ASCEND910B.value, help=f"{names} (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="requests at once (default: %(default)s)")
    parser.add_argument(
        "--prompt", type=int, help="tokens of a request (default: 4096, or what there are positions for)"
    )
    parser.add_argument("--cache", type=int, help="positions of the static cache (default: twice the prompt)")
    parser.add_argument(
        "--dtype", default="bfloat16", help="bfloat16, float16, float32 (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the plan as JSON")
    parser.add_argument("--html", metavar="FILE", help="write the plan as one HTML page")


def run(given: argparse.Namespace) -> int:
    """Print the plan and write what was asked for; 2 where an argument is wrong, else 0."""
    from .planner import plan

    try:
        _check_files(json=given.json, html=given.html)
        made = plan(
            given.config,
            target=given.target,
            batch=given.batch,
            prompt=given.prompt,
            cache=given.cache,
            dtype=given.dtype,
        )
        made.print()
        if given.json is not None:
            _write("json", given.json, json.dumps(made.to_dict(), indent=1) + "\n")
        if given.html is not None:
            _write("html", given.html, made.html())
    except AscendFiaError as error:
        print(f"npu-compile: {error}", file=sys.stderr)
        return 2
    return 0


def _check_files(**files: str | None) -> None:
    """Before a minute is spent on a plan that has no place to go to, or half of one."""
    seen: dict[Path, str] = {}
    for argument, path in files.items():
        if path is None:
            continue
        if not Path(path).parent.is_dir():
            raise AscendFiaError(argument, path, "its folder doesn't exist")
        if Path(path).is_dir():
            raise AscendFiaError(argument, path, "it is the file to write, not a folder")
        other = seen.setdefault(Path(path).resolve(), argument)
        if other != argument:
            raise AscendFiaError(argument, path, f"it is another file than that of --{other}")


def _write(argument: str, path: str, text: str) -> None:
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        raise AscendFiaError(argument, path, f"can't be written: {error.strerror}") from None
