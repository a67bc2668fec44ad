"""Attention sinks: which heads rest on the first token, and whether they leave it when something matches.

python analyses/sinks.py --model toy
"""

from analyses.stopping import listen

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

from analyses.command import run
from analyses.head_report import head_analysis

ABOUT = "Attention sinks: which heads rest on the first token, and whether they leave it when something matches."
app = head_analysis("sinks", ("sink",), ABOUT)

if __name__ == "__main__":
    raise SystemExit(run(app))
