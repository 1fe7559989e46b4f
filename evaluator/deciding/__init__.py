"""Decisions on a run's numbers: the gate's verdicts, and
what moved between two runs.

- `decision.decide(paired, Thresholds())`: one checkpoint's decision. Pure: arrays and
  tolerances in, a decision out.
- `verdicts.judge(inputs, Policy())`: the verdicts on all compressed checkpoints of
  a run.
- `verdict_text.words(verdicts)`: the verdicts in plain words, a line each.
- `comparison.compare(side_a, side_b).frame`: what moved, by checkpoint, task, measure
  and language.
"""
