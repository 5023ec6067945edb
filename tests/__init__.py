"""Everything that is tested. A package, so that test helpers are imported as `tests.<name>` from anywhere."""
