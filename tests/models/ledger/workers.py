"""Runs tasks in processes forked from one that has imported everything, a few at a time."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import pkgutil
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from transformers import models

Task = TypeVar("Task")
MEMORY = 12 * 2**30


def import_models() -> None:
    """Import all of transformers' models and what a compilation needs, so that a fork has them."""

    for package in pkgutil.iter_modules(models.__path__):
        try:
            folder = importlib.import_module(f"{models.__name__}.{package.name}")
            for module in pkgutil.iter_modules(getattr(folder, "__path__", ())):
                if module.name.startswith("modeling_"):
                    importlib.import_module(f"{folder.__name__}.{module.name}")
        except ImportError:
            continue
    gc.collect()
    gc.freeze()


def run_forked(
    work: Callable[[Task], Iterator[Any]],
    tasks: Sequence[Task],
    workers: int,
    seconds: Callable[[Task], float],
    goes_on: Callable[[], bool],
) -> Iterator[tuple[Task, list[Any], str]]:
    """Each task with what ``work`` gave, in the order of completion, and why it ended early, or ''.

    A task may take its ``seconds``, and none begins once ``goes_on`` says no.
    """
    context = multiprocessing.get_context("fork")
    waiting, running = list(reversed(tasks)), []
    while running or (waiting and goes_on()):
        while waiting and len(running) < workers and goes_on():
            task = waiting.pop()
            receiver, sender = context.Pipe(duplex=False)
            process = context.Process(target=_child, args=(work, task, sender))
            process.start()
            sender.close()
            running.append((task, process, receiver, time.monotonic() + seconds(task), []))
        for entry in list(running):
            task, process, receiver, deadline, found = entry
            end = _drain(receiver, found)
            if end is None and time.monotonic() > deadline:
                end = f"not done after {seconds(task):.0f} seconds"
            if end is not None:
                running.remove(entry)
                process.kill()
                process.join()
                yield task, found, end


def _drain(receiver: Connection, found: list[Any]) -> str | None:
    """Take what has come; '' at a proper end, a sentence where the process died, None while it runs."""
    while receiver.poll(0.02):
        try:
            message = receiver.recv()
        except EOFError:
            return "the process died"
        if message is None:
            return ""
        found.append(message)
    return None


def _child(work: Callable[[Any], Iterator[Any]], task: Any, sender: Connection) -> None:
    os.setsid()
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for found in work(task):
        sender.send(found)
    sender.send(None)
