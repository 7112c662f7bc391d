"""How a plan's page looks."""

STYLE = """
:root { --ink: #1c2430; --dim: #5d6775; --line: #dfe3e8; --was: #c3c9d1; --now: #1f6feb; --warn: #9a3412; }
* { box-sizing: border-box; }
body { margin: 0; background: #fff; color: var(--ink); font: 14px/1.45 system-ui, sans-serif; }
main { max-width: 1200px; margin: 0 auto; padding: 32px 24px 48px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 36px 0 10px; padding-top: 18px; border-top: 1px solid var(--line); }
h1 span, h2 span { font-weight: 400; color: var(--dim); }
h2 span { font-size: 14px; margin-left: 6px; }
.lead { font-size: 16px; margin: 0 0 14px; }
.facts { margin: 8px 0; padding-left: 18px; color: var(--dim); overflow-wrap: anywhere; }
.note { color: var(--dim); margin-top: 28px; }
table { width: 100%; border-collapse: collapse; margin: 6px 0 10px; }
th { text-align: left; font-weight: 600; color: var(--dim); border-bottom: 1px solid var(--ink); }
th, td { padding: 6px 8px; vertical-align: top; overflow-wrap: anywhere; }
td { border-bottom: 1px solid var(--line); }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td b { white-space: nowrap; }
td s { color: var(--dim); text-decoration: line-through; text-decoration-color: var(--was); }
tr.left td { color: var(--warn); }
figure { margin: 14px 0 0; }
figcaption { color: var(--dim); max-width: 720px; margin-top: 6px; }
figcaption i { display: inline-block; width: 11px; height: 11px; vertical-align: -1px; }
i.was { background: var(--was); } i.now { background: var(--now); }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; fill: var(--ink); }
svg .was { fill: var(--was); } svg .now { fill: var(--now); }
svg .end { text-anchor: end; } svg .middle { text-anchor: middle; }
svg .grid { stroke: var(--line); } svg .roof { fill: none; stroke: var(--ink); stroke-width: 2; }
"""
