"""The suite that ``lox.loggers.testing`` offers to authors of backends."""
