"""First-order recurrences in time linear in n: per channel (`scan`), and with a matrix as state (`expanded_scan`)."""

from resolvent.ops.scan.expanded import expanded_scan
from resolvent.ops.scan.first_order import scan

__all__ = ["expanded_scan", "scan"]
