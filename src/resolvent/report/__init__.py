"""Figures and tables. Needs matplotlib and rich, never torch."""

from resolvent.disk_cache import use_matplotlib_folder

use_matplotlib_folder()
