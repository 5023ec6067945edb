"""From a traced program with marks to the program that a transformation makes of it."""

import lox._interpret.rules  # noqa: F401 (fills the table of rules)
