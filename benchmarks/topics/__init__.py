"""One module for each question. ``figures(quick)`` yields what it measured; quick: only what guards against regressions."""
