"""A figure that shows itself in a notebook. Needs matplotlib, so it is imported where a figure is drawn."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

_SHOWN_DPI = 110  # the picture has 1.5 times as many pixels, for sharp screens


class NotebookFigure(Figure):
    """A matplotlib figure that a notebook shows even if pyplot was not imported."""

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        picture = io.BytesIO()
        self.savefig(picture, format="png", dpi=1.5 * _SHOWN_DPI)
        width, height = (round(inches * _SHOWN_DPI) for inches in self.get_size_inches())
        return picture.getvalue(), {"width": width, "height": height}
