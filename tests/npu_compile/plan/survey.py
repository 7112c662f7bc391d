"""Plans of the published models in tests/configs, pinned as data, and the table of docs/plan.md made of them.

    python -m tests.npu_compile.plan.survey            plan all of them again, about ten minutes
    python -m tests.npu_compile.plan.survey NAME...    plan these again

What is pinned doesn't depend on the machine it is made on.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npu_compile.planning import words
from npu_compile.planning.result import Plan, StepPlan

ROOT = Path(__file__).parents[3]
CONFIGS = ROOT / "tests" / "configs"
PINNED = Path(__file__).with_name("plans.json")
PAGE = ROOT / "docs" / "plan.md"
BEGIN, END = "<!-- survey: begin -->\n", "<!-- survey: end -->\n"

TARGET, BATCH, DTYPE = "ascend910b", 8, "bfloat16"
NAMES = sorted(path.stem for path in CONFIGS.glob("*.json"))


def made(name: str) -> Plan:
    """The plan of one config with the survey's sizes."""
    from npu_compile import plan

    return plan(CONFIGS / f"{name}.json", target=TARGET, batch=BATCH, dtype=DTYPE)


def pinned() -> dict[str, Any]:
    return json.loads(PINNED.read_text()) if PINNED.exists() else {}


def entry(plan: Plan) -> dict[str, Any]:
    """What is pinned of a plan."""
    return {
        "layers": [stack.layers for stack in plan.stacks],
        "planned": [stack.planned for stack in plan.stacks],
        "prompt": plan.prompt,
        "cache": plan.cache,
        "steps": {step.name: _step(step) for step in plan.steps},
    }


def _step(step: StepPlan) -> dict[str, Any]:
    forms = dict.fromkeys(words.operator(site) for site in step.sites if site.site.lowered)
    reasons = dict.fromkeys(site.site.reason for site in step.sites if not site.site.lowered)
    return {
        "sites": sum(site.count for site in step.sites),
        "lowered": sum(site.count for site in step.sites if site.site.lowered),
        "forms": list(forms),
        "reasons": list(reasons),
        "flops": step.cost.flops,
        "kv_bytes": step.cost.kv_bytes,
        "program_mask_bytes": step.program.mask_bytes,
        "mask_bytes": step.cost.mask_bytes,
        "seconds": step.seconds,
    }


def table(entries: Mapping[str, Any]) -> str:
    """The table of docs/plan.md, and below it why attention was left."""
    lines = [
        "| model | layers | step | lowered | as | FLOPs | KV read | mask | time ≥ |",
        "|---|---:|---|---:|---|---:|---:|---:|---:|",
    ]
    reasons: dict[str, list[str]] = {}
    for name, one in sorted(entries.items()):
        for step, found in one["steps"].items():
            lines.append(f"| {' | '.join(_cells(name, one, step, found))} |")
            for reason in found["reasons"]:
                reasons.setdefault(reason, []).append(f"{name} ({step})")
    lines.append("")
    if reasons:
        lines += ["Attention that is left as it was, and why:", ""]
        lines += [f"* {', '.join(where)}: {reason}" for reason, where in reasons.items()]
        lines.append("")
    return "\n".join(lines)


def _cells(name: str, one: Mapping[str, Any], step: str, found: Mapping[str, Any]) -> Iterator[str]:
    first = step == next(iter(one["steps"]))
    yield name if first else ""
    yield " + ".join(map(str, one["layers"])) if first else ""
    yield f"{step} {one['prompt']}" if step == "prefill" or (first and one["prompt"]) else step
    yield f"{found['lowered']}/{found['sites']}"
    yield "; ".join(found["forms"]) or "—"
    yield words.flops(found["flops"])
    yield words.size(found["kv_bytes"])
    yield f"{words.size(found['program_mask_bytes'])} → {words.size(found['mask_bytes'])}"
    yield "—" if found["seconds"] is None else words.duration(found["seconds"])


def page_with(text: str) -> str:
    """docs/plan.md with ``text`` for its table."""
    page = PAGE.read_text()
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{text}\n{END}{rest.split(END)[1]}"


def main(names: list[str]) -> None:
    for number, name in enumerate(names, 1):
        plan = made(name)
        # Read anew: another process may have planned other models meanwhile.
        entries = {**pinned(), name: entry(plan)}
        kept = {known: entries[known] for known in NAMES if known in entries}
        PINNED.write_text(json.dumps(kept, indent=1) + "\n")
        print(f"{number}/{len(names)} {name}: {plan.seconds:.0f} s", flush=True)
    PAGE.write_text(page_with(table(pinned())))


if __name__ == "__main__":
    main(sys.argv[1:] or NAMES)
