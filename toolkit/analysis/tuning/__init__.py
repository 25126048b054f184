"""Which K at which load: explored, written as the engine's own schedule, and measured again."""
