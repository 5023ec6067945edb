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
        status: int | None = options.run(options)
        sys.stdout.flush()
    except (lox.LoxError, ImportError) as error:
        sys.stderr.write(f"lox: {error}\n")
        return 1
    except BrokenPipeError:  # the reader (`head`, `less`) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return status or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lox", description="Show, plot and export logs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    loggers = commands.add_parser("loggers", help="list installed loggers and their errors")
    loggers.add_argument("--check", action="store_true", help="exit with status 1 if a logger cannot be imported")
    loggers.set_defaults(run=_loggers)

    show = commands.add_parser("show", help="list runs and keys, with their latest values and trends")
    _add_selection(show)
    show.add_argument("--each", action="store_true", help="one table per run, even if there are many")
    show.set_defaults(run=_show)

    plot = commands.add_parser(
        "plot", help="plot keys in the terminal or to a file; several runs as their mean with a band"
    )
    _add_selection(plot)
    plot.add_argument(
        "--axis",
        help="the step axis to plot over (default: the first one, or record numbers if there is none)",
    )
    plot.add_argument(
        "--output", "-o", metavar="FILE", help="write an image, such as plot.png, instead of plotting in the terminal"
    )
    plot.add_argument("--each", action="store_true", help="draw one line per run instead of their mean")
    plot.add_argument("--log", action="store_true", help="use a logarithmic y axis")
    plot.set_defaults(run=_plot)

    export = commands.add_parser("export", help="export all records as one table")
    _add_selection(export)
    export.add_argument(
        "--format",
        "-f",
        choices=("csv", "jsonl", "parquet"),
        help="the format (default: from the name of FILE, or csv)",
    )
    export.add_argument("--output", "-o", metavar="FILE", help="the file to write (default: standard output)")
    export.set_defaults(run=_export)
    return parser


def _add_selection(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("paths", nargs="+", metavar="PATH", help="a saved run, or a folder of runs")
    parser.add_argument(
        "--keys",
        "-k",
        nargs="+",
        default=["*"],
        metavar="KEY",
        help="only these keys, or leaves of nested values; patterns such as 'train/*' work",
    )


def _loggers(options: argparse.Namespace) -> int:
    from lox.loggers._cli.show import list_loggers

    return 0 if list_loggers() or not options.check else 1


def _show(options: argparse.Namespace) -> None:
    from lox.loggers._cli.show import show

    show(options.paths, options.keys, each=options.each)


def _plot(options: argparse.Namespace) -> None:
    from lox.loggers._cli.plot import plot

    plot(options.paths, options.keys, axis=options.axis, output=options.output, each=options.each, log=options.log)


def _export(options: argparse.Namespace) -> None:
    from lox.loggers._cli.export import export

    export(options.paths, options.keys, form=options.format, output=options.output)


if __name__ == "__main__":
    sys.exit(main())
