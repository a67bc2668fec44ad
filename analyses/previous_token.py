"""Previous-token heads: which heads look one token back, and what induction heads lose without them.

python analyses/previous_token.py --model toy
"""

from analyses.stopping import listen

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

from analyses.command import run
from analyses.head_report import head_analysis

ABOUT = "Previous-token heads: which heads look one token back, and what induction heads lose without them."
app = head_analysis("previous_token", ("previous_token",), ABOUT)

if __name__ == "__main__":
    raise SystemExit(run(app))
