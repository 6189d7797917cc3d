"""What stands below the list of commands: how they are used, and what their exit codes mean."""

EXAMPLES = """\b
Examples:
  batchgen plan jobs/quickstart.yaml      read all input, compute nothing
  batchgen run jobs/quickstart.yaml       make the rows, or go on where it stopped
  batchgen status runs/quickstart         how far it is, from another shell
  batchgen show runs/quickstart           look at a few of them
  batchgen report runs/quickstart         all of it on one page, report.html
  batchgen verify runs/quickstart         recompute every hash from the files
  batchgen replay runs/quickstart         make some rows again, and compare every bit
  batchgen diff runs/a runs/b             which rows differ, and why
  batchgen explain runs/a KEY --against runs/b   at which token, layer and op one of them parts

\b
Exit codes:
  0 every row is ok     3 finished, some rows hold errors     2 wrong usage
  4 job file   5 input   6 model   7 run folder   8 verify   9 engine   130 interrupted
"""
