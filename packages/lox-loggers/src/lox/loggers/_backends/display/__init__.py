"""``ConsoleLogger`` and ``ProgressLogger``: what a person watches."""
