"""Sizes that the kernels and those who call them agree on."""

UNIT = 16  # elements: rows in memory are whole units
STATS = 4  # numbers kept of a row: softmax(s) = exp(s - top) · factor, for A and for B
