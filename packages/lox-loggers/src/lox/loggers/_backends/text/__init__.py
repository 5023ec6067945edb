"""``CsvLogger`` and ``JsonlLogger``: one line for each record."""
