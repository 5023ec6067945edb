"""The `lox` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

import lox


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except (lox.LoxError, ImportError) as error:
        sys.stderr.write(f"lox: {error}\n")
        return 1
    except BrokenPipeError:  # the reader (`head`, `less`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lox", description="Look at logs, and at what can write them.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    loggers = commands.add_parser("loggers", help="what is installed, and what of it is broken and why")
    loggers.set_defaults(run=_loggers)

    show = commands.add_parser("show", help="runs, keys, steps, and how the values went")
    _add_selection(show)
    show.set_defaults(run=_show)

    plot = commands.add_parser("plot", help="a plot in the terminal, or as a file; over runs, their mean with a band")
    _add_selection(plot)
    plot.add_argument(
        "--axis", help="the step axis to plot over (default: the first one; record numbers if there is none)"
    )
    plot.add_argument("--output", "-o", metavar="FILE", help="write an image, such as plot.png, instead")
    plot.add_argument("--each", action="store_true", help="a line for each run instead of their mean")
    plot.set_defaults(run=_plot)

    export = commands.add_parser("export", help="all records in one table")
    _add_selection(export)
    export.add_argument("--format", "-f", choices=("csv", "jsonl", "parquet"), help="default: from FILE, else csv")
    export.add_argument("--output", "-o", metavar="FILE", help="default: standard output")
    export.set_defaults(run=_export)
    return parser


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("path", metavar="PATH", help="a saved run, or a folder of runs")
    parser.add_argument("--keys", "-k", nargs="+", default=["*"], metavar="KEY", help="only these; 'train/*' works")


def _loggers(options: argparse.Namespace) -> None:
    from lox.loggers._cli_show import list_loggers

    list_loggers()


def _show(options: argparse.Namespace) -> None:
    from lox.loggers._cli_show import show

    show(options.path, options.keys)


def _plot(options: argparse.Namespace) -> None:
    from lox.loggers._cli_plot import plot

    plot(options.path, options.keys, axis=options.axis, output=options.output, each=options.each)


def _export(options: argparse.Namespace) -> None:
    from lox.loggers._cli_export import export

    export(options.path, options.keys, form=options.format, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
