"""Replaying recorded answers against proposers, without a model: which one suits this traffic, and what it costs."""
