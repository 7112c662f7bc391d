"""context parallel: lowered attention calls rewritten to calls over the ranks of a group.

| file | what |
|---|---|
| `collectives` | the two exchanges, and running an algorithm on a torch.distributed group |
| `fia_call` | an FIA call by meaning, whichever version and layout |
| `metadata` | what a prefill step needs to know about this rank's tokens |
| `prefill`, `keys`, `decode`, `merge` | the algorithms, written once for graphs, eager calls and simulation |
| `legality` | which calls may be rewritten, and why the others may not |
| `rewrite`, `inputs`, `step_placeholders`, `splice` | the pass |
| `schedule`, `report` | starting collectives early, and what they cost |
"""
