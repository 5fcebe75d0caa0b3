"""Measuring: cases, the correctness gate, timing, workers, the sweep, cross-compiling, the manifest."""
