"""report.html: a run, or what there is of it, as one page. Reads files only."""

from batchgen.io.writer import write_whole
from batchgen.places import Place
from batchgen.report.page import render
from batchgen.report.summary import Decode, Summary, summarise

FILE_NAME = "report.html"


def write_report(
    run: Place, out: Place | None = None, decode: Decode | None = None, against: Place | None = None
) -> Summary:
    """Write the page of the run at `run` to `out`, by default into its folder, and give the numbers on it.

    `decode` turns prompt ids into text; `against` is a run to compare with. Without that, memory does not grow with the
    run. Raises RunError when a run cannot be read or the page not be written, and VerifyError when a run that is
    compared does not verify.
    """
    summary = summarise(run, decode, against)
    write_whole(out or run / FILE_NAME, render(summary).encode())
    return summary
