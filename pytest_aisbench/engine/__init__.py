"""The life of a run: its trials are staged, submitted, watched, collected and judged.

Begin reading at `run.Run`, which opens a run and its Fleet. `fleet.Fleet` decides which trial moves next, `scheduler`
has its threads and its clock, and `trial.advance` moves one trial by one step; each step has a module: `staging`,
`submit`, `watch`, `collect`, and `trial.VerdictStep` for the verdict. Beside them: `suites` (a suite's files become
cases), `preflight` (checks before anything is uploaded), `budget` (cost, and the dry run), `takeover` (jobs of a killed
run), `cancel` (ends jobs) and `references` (proposes thresholds).

The engine talks to platforms, stores and the clock through `model.ports` and names no vendor. `platforms`, `report`,
`tester`, `session` and `cli` may import it; it imports `ledger`, `judge`, `traininglog`, `config` and `model`.
"""
