"""Every loop in numba."""

from sottovoce.data.kernels.compiling import watch

watch()
