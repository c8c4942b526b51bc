"""Numba's source of all compiled kernels, and how they become machine code that is kept on disk.

Nobody imports the source but the process that compiles it (`compiler.py`): to others a kernel is a name, `Kernel`.
"""

from resolvent.kernels.kernel import BoundKernel, Kernel, Memory, variants_of
from resolvent.kernels.sizes import STATS, UNIT
from resolvent.kernels.variant import KernelVariant

__all__ = ["STATS", "UNIT", "BoundKernel", "Kernel", "KernelVariant", "Memory", "variants_of"]
