"""The diagrams of the documentation: macrobatches, and one for each concept."""

from drawing import GREY, LINE, PALE, Drawing

WARM, WHITE = "#fdebd0", "#ffffff"


def macrobatches() -> str:
    """How rows of a file become batches on the device."""
    drawing = Drawing(760, 250, "From a file to batches: blocks, macrobatches, batches, microbatches")
    for number in range(5):
        drawing.box(24, 44 + 36 * number, 110, 30, [f"block {number}"], PALE if number in (1, 3) else WHITE)
    drawing.text(79, 30, "file", anchor="middle", bold=True)
    drawing.arrow(138, 95, 206, 118, "")
    drawing.arrow(138, 167, 206, 140, "")
    drawing.text(172, 84, "reads", size=11, color=LINE, anchor="middle")
    drawing.box(210, 84, 130, 90, ["macrobatch k + 1", "in memory,", "read by a thread"])
    drawing.arrow(344, 129, 406, 129, "copies")
    drawing.box(410, 84, 130, 90, ["macrobatch k", "on the device,", "in use"], WARM)
    for number in range(4):
        drawing.arrow(544, 129, 606, 66 + 42 * number)
        drawing.box(610, 50 + 42 * number, 126, 32, [f"batch {number}"], WARM)
    drawing.text(673, 30, "one update each", anchor="middle", bold=True)
    drawing.text(
        380, 236, "A batch is a view of the macrobatch: giving it out copies nothing.", anchor="middle", color=LINE
    )
    return drawing.svg


def terms() -> str:
    """Why a loss is a sum and a weight: two unequal microbatches, their sums and their weights."""
    drawing = Drawing(760, 220, "Two microbatches give the mean of the whole batch")
    drawing.box(24, 40, 200, 50, ["microbatch of 3 rows", "losses 1, 2, 6"])
    drawing.box(24, 120, 200, 50, ["microbatch of 1 row", "loss 7"])
    drawing.arrow(228, 65, 286, 65)
    drawing.arrow(228, 145, 286, 145)
    drawing.box(290, 40, 150, 50, ["sum 9, weight 3"], WARM)
    drawing.box(290, 120, 150, 50, ["sum 7, weight 1"], WARM)
    drawing.arrow(444, 65, 512, 98)
    drawing.arrow(444, 145, 512, 112)
    drawing.box(516, 80, 220, 50, ["sum 16, weight 4", "mean 16 / 4 = 4: that of all rows"])
    drawing.text(380, 204, "The mean of the two means, (3 + 7) / 2 = 5, would be wrong.", anchor="middle", color=LINE)
    return drawing.svg


def arena() -> str:
    """Parameters of a model, and the vectors that they are views of."""
    drawing = Drawing(760, 230, "Parameters are views of one long vector")
    widths, names = (190, 60, 150, 44), ("0.weight", "0.bias", "2.weight", "2.bias")
    x = 160.0
    for width, name in zip(widths, names, strict=True):
        drawing.box(x, 30, width, 32, [name], WHITE)
        drawing.arrow(x + width / 2, 66, x + width / 2 - 0.4, 92)
        for y, color in ((96, PALE), (136, WARM), (176, WHITE)):
            drawing.rectangle(x, y, width, 30, color, LINE)
        x += width
    for y, name in ((51, "model"), (116, "weights"), (156, "gradients"), (196, "optimizer")):
        drawing.text(24, y, name, bold=True)
    drawing.text(620, 156, "one call for", size=12, color=LINE)
    drawing.text(620, 173, "all of them", size=12, color=LINE)
    return drawing.svg


def tape() -> str:
    """An eager update, and its replay."""
    drawing = Drawing(760, 190, "An eager pass and its replay from a tape")
    drawing.text(24, 40, "eager", bold=True)
    drawing.text(24, 125, "replayed", bold=True)
    x = 110
    for name in ("Linear", "ReLU", "Linear", "loss", "backward"):
        drawing.box(x, 20, 56, 32, ["Python"], WHITE)
        drawing.box(x + 56, 20, 68, 32, [name], WARM)
        x += 126
    x = 110
    for name in ("Linear", "ReLU", "Linear", "loss", "backward"):
        drawing.box(x, 105, 68, 32, [name], WARM)
        x += 72
    drawing.text(110, 168, "The same kernels in the same order, without the Python between them.", color=LINE)
    drawing.arrow(110, 84, 736, 84, "time")
    return drawing.svg


def orders() -> str:
    """An order of an epoch, and the cursor that points into it."""
    drawing = Drawing(760, 190, "An order and a cursor")
    drawing.text(24, 36, "Order(8 rows, seed 0), epoch 2", bold=True)
    for number, row in enumerate((5, 0, 7, 2, 6, 1, 4, 3)):
        drawing.box(24 + 60 * number, 52, 54, 36, [f"row {row}"], GREY if number < 3 else PALE)
    drawing.arrow(207, 130, 207, 94)
    drawing.text(207, 148, "cursor: epoch 2, position 3", anchor="middle")
    drawing.text(520, 74, "computed, never stored", color=LINE)
    drawing.text(24, 176, "To go on from here takes the seed, the epoch and the position: three integers.", color=LINE)
    return drawing.svg


def resume() -> str:
    """A training that is killed and goes on, beside one that is not."""
    drawing = Drawing(760, 200, "A killed and resumed training ends with the same weights")
    drawing.text(24, 52, "not stopped", bold=True)
    drawing.text(24, 122, "killed", bold=True)
    drawing.arrow(130, 48, 640, 48)
    drawing.box(644, 32, 92, 32, ["weights W"], WARM)
    drawing.rectangle(130, 108, 190, 20, PALE, LINE)
    drawing.text(225, 123, "saved", size=12, anchor="middle")
    drawing.rectangle(320, 108, 70, 20, GREY, LINE)
    drawing.text(355, 123, "lost", size=12, anchor="middle")
    drawing.text(396, 124, "✕ kill", color="#c62828", bold=True)
    drawing.arrow(320, 132, 320, 158)
    drawing.text(24, 168, "resumed", bold=True)
    drawing.arrow(320, 164, 640, 164, "the lost updates are made again")
    drawing.box(644, 148, 92, 32, ["weights W"], WARM)
    return drawing.svg


DIAGRAMS = {
    "macrobatches": macrobatches,
    "terms": terms,
    "arena": arena,
    "tape": tape,
    "orders": orders,
    "resume": resume,
}
