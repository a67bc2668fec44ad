"""All kinds of head in one pass: previous-token, sink, induction, duplicate- and current-token.

python analyses/heads.py --model toy
"""

from analyses.stopping import listen

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

from analyses.command import run
from analyses.head_report import head_analysis

ABOUT = "All kinds of head in one pass: previous-token, sink, induction, duplicate- and current-token."
app = head_analysis("heads", None, ABOUT)

if __name__ == "__main__":
    raise SystemExit(run(app))
