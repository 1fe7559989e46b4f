"""Decisions on the numbers of a run: the gate's verdicts, when it stops a sweep, and what moved between two runs.

outcome, checks = decision.decide(paired, Thresholds())     # pure: arrays and tolerances in, a decision out
verdicts = verdicts.judge(inputs, Thresholds())             # of each compressed checkpoint of a run
words.paragraph(verdicts)                                   # the same in plain words
comparison.compare(side_a, side_b).frame                    # what moved, by checkpoint, task, measure and language
"""
