"""The machine that rows are made on, for the log of a run. No bit depends on it."""

import os
import platform
import re
from pathlib import Path
from typing import Any


def host() -> dict[str, Any]:
    """JSON: platform, cpu (its model), cores (of the machine), python (version)."""
    return {
        "platform": platform.platform(),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
    }


def _cpu() -> str:
    try:
        named = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        named = None
    return named[1] if named else platform.processor() or platform.machine()
