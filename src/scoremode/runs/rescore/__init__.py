"""Second runs: some windows scored again under other options, and held against the first scores.

`verify` (every engine against float32), `noise` (a base against itself) and `check` (a published run
against its record) differ in the windows they take, in the options, and in what they say of the
difference. What they share is here: `sampling` picks windows, `rescore` scores them, in this process or
in one of its own, and `compare` tells how two scorings differ and whether rounding explains it.
"""
