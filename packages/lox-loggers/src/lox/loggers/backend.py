"""Tools for writing backends, beyond `Logger` itself. lox's own backends use only these, and yours can use them too.

Files: `GrowingFile` appends whole pieces and keeps what the disk refuses. `create`, `replace` and `refuse_links` handle files in
folders that others can write to. `write_config`, `read_config` and `remove_config` handle the `config.json` of a run, at
`config_in(folder)` or `config_next_to(file)`.

Rows: `number_labels` and `merge_labels` are the rule by which records of equal steps share a row.

Options: `check_format` and `fill_format` handle options that are format strings over a run, like `name=`. `json_value` converts a
value of a config to JSON types, and `describe_histogram` returns the figures that readers give for a histogram.
"""

from lox._logdict.alignment import merge_labels as merge_labels
from lox._logdict.alignment import number_labels as number_labels
from lox.loggers._backends.config_file import config_in as config_in
from lox.loggers._backends.config_file import config_next_to as config_next_to
from lox.loggers._backends.config_file import read_config as read_config
from lox.loggers._backends.config_file import remove_config as remove_config
from lox.loggers._backends.config_file import write_config as write_config
from lox.loggers._delivery.config import json_value as json_value
from lox.loggers._delivery.names import check_format as check_format
from lox.loggers._delivery.names import fill_format as fill_format
from lox.loggers._delivery.run import NameFormat as NameFormat
from lox.loggers._files import GrowingFile as GrowingFile
from lox.loggers._files import create as create
from lox.loggers._files import refuse_links as refuse_links
from lox.loggers._files import replace as replace
from lox.loggers._readers.histograms import describe_histogram as describe_histogram
