"""Where in the user's program a node comes from, for reports."""

from __future__ import annotations

import re

from torch import fx

from npu_compile.passes.values import argument, aten, is_call

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_LIBRARY = ("/torch/nn/", "/torch/_", "/torch/utils/", "/torch/functional.py", "/transformers/integrations/")


def module_path(node: fx.Node) -> str:
    """The dotted path of the module that computes ``node``, e.g. ``model.layers.0.self_attn``."""
    stack = node.meta.get("nn_module_stack") or {}
    if not stack:
        return ""
    path = str(list(stack.values())[-1][0])
    path = re.sub(r"\['([^']+)'\]", r".\1", path)
    path = re.sub(r"\[(\d+)\]", r".\1", path)
    path = re.sub(r"^L\.(args\.\d+|[A-Za-z_]\w*)\.?", "", path)
    return path.replace("_modules.", "").strip(".") or "(root)"


def source(node: fx.Node) -> str:
    """``file:line`` of the innermost frame that is not torch's own, ``""`` if unknown."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    for file, line in reversed(frames):
        if not any(part in file for part in _LIBRARY):
            return f"{short(file)}:{line}"
    return ""


def short(file: str) -> str:
    """A path from its package on: ``transformers/models/llama/modeling_llama.py``."""
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in file:
            return file.split(mark, 1)[1]
    return "/".join(file.split("/")[-2:])


def operator_name(node: fx.Node) -> str:
    """What ``node`` calls, as a user knows it: ``masked_fill``, ``einsum('bqd,bkd->bqk')``."""
    if is_call(node, aten.einsum):
        return f"einsum({argument(node, 0, 'equation')!r})"
    called = getattr(node.target, "overloadpacket", node.target)
    return "the graph's output" if node.op == "output" else str(getattr(called, "__name__", called))
