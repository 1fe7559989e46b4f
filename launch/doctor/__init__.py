"""`resurface doctor`: what this machine is, and whether every fast path agrees with its slow one on it.

witnesses    engines and pruning jobs, each in a process of its own, all asked the same questions
evidence     what they answered
checks       what is held against what, in which tolerance: pure
examination  machine, witnesses and checks in turn
card         the result as a table, a Markdown file, JSON
"""
