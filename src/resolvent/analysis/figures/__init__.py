"""Figures of patterns. Needs matplotlib, never torch; imported when something is drawn."""

from resolvent.disk_cache import use_matplotlib_folder

use_matplotlib_folder()
