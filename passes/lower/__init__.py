"""lower: attention sites become fused operator calls, or stay with a reason.

| module | what |
|---|---|
| `sites` | the pass |
| `masks` | the operator arguments that say what a mask means |
| `forms` | the calls that a site could become, cheapest first |
| `sinks`, `softcap` | the same for sites with a sink, and with a soft cap |
| `legality` | the first call that the target's contract allows |
| `outcome` | what became of a site, as a report row |
| `shared` | small nodes that all layers read |
"""
