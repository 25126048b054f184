"""Is it still the same model? Questions to a running arm and its baseline, and what their replies prove."""
