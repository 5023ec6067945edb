"""A figure that shows itself in a notebook. Needs matplotlib, so it is imported where a figure is drawn."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

_SHOWN_DPI = 110  # with half as many pixels again, for screens that have them


class NotebookFigure(Figure):
    """matplotlib's figure, also shown by a notebook in which nobody has imported pyplot."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=1.5 * _SHOWN_DPI)
        width, height = (round(inches * _SHOWN_DPI) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}
