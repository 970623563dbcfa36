"""The sealed tokens of a live, unmodified lakeFS on PostgreSQL merged into one (docs/design/staging.md#live-lakefs).

`repository` opens and checks one (`open_live_repository`), `planning` reads (`inspect_branches`, `plan_merge`),
`merging` merges (`merge_branch`), `cleaning` ends what merges began (`recover`, `drop_due`; `left_over` shows it
before) and says whether one could be undone (`check_undo`), and `control` has the kill switch.
"""
