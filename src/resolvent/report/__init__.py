"""Figures and tables. Needs matplotlib and rich, never torch."""
