"""The induction circuit: induction heads, the previous-token heads they build on, and the sinks they rest on.

python analyses/induction.py --model toy
"""

from analyses.stopping import listen

if __name__ == "__main__":
    listen()  # before the imports below, which take their time

from analyses.command import run
from analyses.head_report import head_analysis

ABOUT = "The induction circuit: induction heads, the previous-token heads they build on, and the sinks they rest on."
app = head_analysis("induction", ("induction", "previous_token", "sink"), ABOUT)

if __name__ == "__main__":
    raise SystemExit(run(app))
