"""What the operators mean, in float64 and as plainly as possible; shares nothing with the kernels."""
