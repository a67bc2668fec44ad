"""Results to one HTML file that opens offline: attention, lenses, the next token, heads, sweeps, attributions."""

from interp.report.page import to_html, write_report
from interp.report.show import show
from interp.report.views import view_of

__all__ = ["show", "to_html", "view_of", "write_report"]
