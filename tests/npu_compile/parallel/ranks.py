"""Real process groups for tests: one process a rank on this machine, gloo, pinned to one thread."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import socket
import tempfile
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

# The server imports once; each rank is a fork of it.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "transformers", "npu_compile.parallel.model", "torch._dynamo"])


def run_ranks(world, function, *arguments, timeout=300, deadline=900):
    """``function(rank, *arguments)`` on ``world`` ranks; returns the results by rank.

    A rank that raises gives ``RankError`` as its result, and one that dies ``None``. ``timeout`` is the
    group's; processes that still run after ``deadline`` seconds are killed and fail the test.
    """
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        processes = [
            _context.Process(target=_rank, args=(rank, world, port, timeout, folder, function, arguments))
            for rank in range(world)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + deadline
        for process in processes:
            process.join(max(end - time.monotonic(), 0.1))
        late = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for process in processes:
            process.kill()
        assert not late, f"ranks {late} still run after {deadline} s"
        files = [Path(folder, str(rank)) for rank in range(world)]
        return [torch.load(file, weights_only=False) if file.exists() else None for file in files]


def results(outcomes):
    """The results where every rank has one; otherwise the test fails with the first rank's error."""
    for rank, outcome in enumerate(outcomes):
        assert outcome is not None, f"rank {rank} died"
        assert not isinstance(outcome, RankError), f"rank {rank}:\n{outcome.text}"
    return outcomes


class RankError:
    def __init__(self, text, kind, seconds):
        self.text, self.kind, self.seconds = text, kind, seconds


def _rank(rank, world, port, timeout, folder, function, arguments):
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://127.0.0.1:{port}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout),
    )
    start = time.monotonic()
    try:
        result = function(rank, *arguments)
    except Exception as error:
        result = RankError(traceback.format_exc(), type(error).__name__, time.monotonic() - start)
    torch.save(result, Path(folder, f"{rank}.part"))
    os.rename(Path(folder, f"{rank}.part"), Path(folder, str(rank)))
    # Not destroy_process_group: it waits for peers that may be gone.
    os._exit(0)


def _free_port():
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]
