"""Run a command as on a processor with AVX2 alone, on an Intel processor with newer instructions.

    .venv/bin/python -m tests.avx2.run make test

Hides AVX-512, AVX-VNNI and AMX: from CPUID, by which every framework chooses its kernels (the
switches of the frameworks cover only some of them), and from /proc/cpuinfo. What the command
computes is what such a processor computes; its times are those of this processor. Needs Linux on
an Intel processor, a C compiler, and the right to mount. If there is nothing to hide, the command
runs as it is.
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from paddlepool.contracts.resources import CPUINFO

NEWER = re.compile(r" (?:avx512|amx_|avx_vnni|avx_ifma|avx_ne_convert)\w*")


def main() -> int:
    if not sys.argv[1:]:
        print(__doc__)
        return 2
    if not NEWER.search(CPUINFO.read_text("ascii", "replace")):  # or they are hidden already
        return subprocess.run(sys.argv[1:], check=False).returncode
    if reason := why_not():
        print(f"cannot hide instructions: {reason}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="avx2_") as directory:
        library, cpuinfo = Path(directory) / "hide.so", Path(directory) / "cpuinfo"
        compiler = os.environ.get("CC", "cc")
        source = Path(__file__).with_name("hide.c")
        subprocess.run(
            [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source)], check=True
        )
        cpuinfo.write_text(NEWER.sub("", CPUINFO.read_text("ascii")), "ascii")
        script = 'mount --bind "$0" /proc/cpuinfo && LD_PRELOAD="$1" exec "${@:2}"'
        namespace = ["unshare", "--mount", "bash", "-c", script, str(cpuinfo), str(library)]
        return subprocess.run([*namespace, *sys.argv[1:]], check=False).returncode


def why_not() -> str | None:
    """Return why this machine cannot run a command with AVX2 alone, or None if it can."""
    flags = CPUINFO.read_text("ascii", "replace") if CPUINFO.exists() else ""
    if "cpuid_fault" not in flags.split():
        return "the processor or the kernel cannot make CPUID fault (no cpuid_fault)"
    if os.geteuid() != 0:
        return "mounting another /proc/cpuinfo needs root"
    return None


if __name__ == "__main__":
    sys.exit(main())
