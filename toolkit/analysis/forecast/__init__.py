"""What to expect: what a pass costs, measured or from a data sheet, and the speedup that follows from it."""
