"""Says what machine a result was measured on."""

import os
import platform
from pathlib import Path

ISA_FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx512_fp16", "amx_bf16", "amx_int8")


def describe() -> dict[str, object]:
    """Processor, cores, memory and instruction sets; no host name."""
    info = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    fields = dict(line.split(":", 1) for line in info.splitlines() if ":" in line)
    fields = {k.strip(): v.strip() for k, v in fields.items()}
    flags = set(fields.get("flags", fields.get("Features", "")).split())
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "processor": f"{fields.get('model name', platform.processor())} (model {fields.get('model', '?')})",
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "isa": [f for f in ISA_FLAGS if f in flags],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
    }
