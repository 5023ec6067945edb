"""The `lox` command."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import lox

if TYPE_CHECKING:
    from lox.loggers._cli.selection import RunSelection


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    options = _parser().parse_args(arguments)
    try:
        status: int = options.run(options)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader (`head`, `less`) has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        from lox.loggers._cli.output import note

        known = isinstance(error, lox.LoxError | ImportError | OSError)
        note(str(error) if known else f"{type(error).__name__}: {error} (lox did not expect this; please report it)")
        return 1
    return status


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lox", description="Show, plot and export logs.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    loggers = commands.add_parser("loggers", help="list installed loggers and their errors")
    loggers.add_argument("--check", action="store_true", help="exit with status 1 if a logger cannot be imported")
    loggers.set_defaults(run=_loggers)

    show = commands.add_parser("show", help="list runs, their config and keys, with their latest values and trends")
    _add_selection(show)
    _add_statistics(show)
    show.add_argument("--each", action="store_true", help="one table per run, even if there are many")
    show.add_argument(
        "--sort",
        metavar="KEY",
        help="one row per run, sorted by a config value or a latest value; --sort=-KEY puts the largest first",
    )
    _add_output(show)
    show.set_defaults(run=_show)

    plot = commands.add_parser(
        "plot", help="plot keys in the terminal or into a file; several runs are drawn as their mean with a band"
    )
    _add_selection(plot)
    _add_statistics(plot)
    plot.add_argument(
        "--axis",
        help="the step axis to plot over, such as time (default: the first one, or record numbers if there is none)",
    )
    plot.add_argument(
        "--output",
        "-o",
        metavar="FILE",
        help="write a figure, such as curves.png or curves.pdf, instead of plotting in the terminal",
    )
    plot.add_argument("--each", action="store_true", help="draw one line per run instead of their mean")
    plot.add_argument("--log", action="store_true", help="use a logarithmic y axis")
    plot.add_argument(
        "--smooth",
        type=float,
        default=0.0,
        metavar="WEIGHT",
        help="smooth curves as TensorBoard does, with a weight from 0 to below 1",
    )
    _add_output(plot)
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
    parser.add_argument(
        "paths",
        nargs="+",
        metavar="PATH",
        help="a run, or a folder with runs in it; each path is a separate experiment",
    )
    parser.add_argument(
        "--keys",
        "-k",
        nargs="+",
        default=["*"],
        metavar="KEY",
        help="only these keys, or leaves of nested values; patterns such as 'train/*' work",
    )
    parser.add_argument(
        "--where",
        "-w",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="only runs with this config value; can be repeated",
    )
    parser.add_argument(
        "--reader", action="append", metavar="NAME", help="only runs that this reader reads, such as save or csv"
    )


def _add_statistics(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--by", action="append", default=[], metavar="KEY", help="group runs by a config value; can be repeated"
    )
    parser.add_argument(
        "--center", choices=("mean", "median", "iqm"), default="mean", help="the center of several runs (default: mean)"
    )
    parser.add_argument(
        "--band",
        choices=("std", "ci95", "minmax", "quartiles"),
        help="the spread of several runs (default: std, or minmax on a logarithmic axis)",
    )


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")
    parser.add_argument(
        "--watch",
        nargs="?",
        type=float,
        const=2.0,
        metavar="SECONDS",
        help="update as files grow, every SECONDS (default: 2)",
    )


def _selection(options: argparse.Namespace, also: Sequence[str] = ()) -> RunSelection:
    from lox.loggers._cli.selection import RunSelection

    return RunSelection(options.paths, options.keys, options.where, options.reader, also)


def _loggers(options: argparse.Namespace) -> int:
    from lox.loggers._cli.loggers import list_loggers

    return 0 if list_loggers() or not options.check else 1


def _show(options: argparse.Namespace) -> int:
    from lox.loggers._cli.show import Options, show

    sort = [options.sort.removeprefix("-")] if options.sort else []
    selection = _selection(options, [*options.by, *sort])
    band = options.band or "std"
    looks = Options(options.each, tuple(options.by), options.sort, options.center, band, options.json)
    return _print(options, lambda: show(selection, looks))


def _plot(options: argparse.Namespace) -> int:
    from lox.loggers._cli.plot import plot
    from lox.loggers._compare.curves import Look

    # On a logarithmic axis, a standard deviation would look much larger below the mean than above it.
    band = options.band or ("minmax" if options.log else "std")
    look = Look(tuple(options.by), options.axis, options.center, band, options.each, options.smooth)
    selection = _selection(options, options.by)
    return _print(options, lambda: plot(selection, look, output=options.output, log=options.log, as_json=options.json))


def _export(options: argparse.Namespace) -> int:
    from lox.loggers._cli.export import export

    return 0 if export(_selection(options), form=options.format, output=options.output) else 1


def _print(options: argparse.Namespace, render: Callable[[], tuple[str, bool]]) -> int:
    """Prints what `render` returns, once or repeatedly. The status is 1 if something could not be read."""
    if options.watch is not None:
        from lox.loggers._cli.watch import watch

        watch(lambda: render()[0], options.watch)
        return 0
    text, whole = render()
    sys.stdout.write(text)
    return 0 if whole else 1


if __name__ == "__main__":
    sys.exit(main())
