"""What lox costs, beside what a user would write or install instead.

    python -m benchmarks all      every figure, its plots and the table of the docs
    python -m benchmarks quick    the figures that guard against regressions

Every figure is a ratio: the median time of one program over that of another, measured in turns (A B A B ...) in one
process, so that what else the machine does falls on both alike.
"""
