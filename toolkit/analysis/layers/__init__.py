"""Choosing the layers of a target that draft for it, by measured agreement per cost."""
