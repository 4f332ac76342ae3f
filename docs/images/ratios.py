"""Draws `performance-ratios.svg` from the first table of `docs/performance.md`; needs Matplotlib.

python docs/images/ratios.py
"""

import pathlib
import re

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

FOLDER = pathlib.Path(__file__).parent
ROW = re.compile(r"^\| (.+?) \| (.+?) \| (\d+\.\d+) \|$", re.MULTILINE)


def main() -> None:
    """Draws a bar for each row, in the order of the table."""
    table = (FOLDER.parent / "performance.md").read_text().partition("**Conditions.**")[0]
    rows = [(re.sub(r"\[(.+?)\]\(.+?\)", r"\1", work), peer, float(ratio)) for work, peer, ratio in ROW.findall(table)]
    pyplot.rcParams |= {"svg.hashsalt": "0", "font.size": 10}
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(rows) + 0.8), layout="constrained", facecolor="white")
    bars = axes.barh([f"{work} ({peer})" for work, peer, _ in rows], [ratio for *_, ratio in rows], color="#3b6ea5")
    axes.bar_label(bars, fmt="%.2f", padding=3)
    axes.axvline(1, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("rate of endx_jax over the peer's; the line marks equal rates")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(FOLDER / "performance-ratios.svg", metadata={"Date": None})


if __name__ == "__main__":
    main()
