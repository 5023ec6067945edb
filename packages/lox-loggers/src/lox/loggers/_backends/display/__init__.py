"""``ConsoleLogger``, ``ProgressLogger`` and ``progress``: displays to watch while a program runs."""
