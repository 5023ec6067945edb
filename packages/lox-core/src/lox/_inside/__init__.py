"""Looking into programs that have no marks: ``lox.probe`` and ``lox.find_nonfinite``.

``regions`` is the map of a traced program: its bodies, with readable paths. ``explorer`` is the loop over equations that
follows the map and counts iterations. The two transformations are collectors on top of it.
"""
