"""A figure that a notebook shows by itself. It imports matplotlib, and is imported where something is drawn."""

import io

from matplotlib.figure import Figure


class ShownFigure(Figure):
    """A figure of its own, not of pyplot's: a kernel draws other figures only once pyplot has been imported."""

    def _repr_png_(self) -> bytes:
        """For notebooks; where pyplot is at work they ask it instead, and show the figure once as well."""
        file = io.BytesIO()
        self.savefig(file, format="png")
        return file.getvalue()
