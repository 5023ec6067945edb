"""The ``lox`` command."""
