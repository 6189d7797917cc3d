"""Parameters, and calls to kernels."""
