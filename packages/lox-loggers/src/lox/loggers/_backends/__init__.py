"""The backends that come with lox-loggers."""
