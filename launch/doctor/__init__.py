"""`resurface doctor`: what this machine is, and whether every fast path agrees with
its slow one on it.

runs         engines and pruning jobs; each answers the same requests (cases) in a
             separate process
results      the answers of each run, and how far two runs are apart: pure
checks       which results are compared, and their tolerances: pure
report       executes the runs and checks; prints a table, Markdown or JSON"""
