"""Campaign `disk`: the disk is full at some write; with room again the run goes on to the same bits.

The disk is a tmpfs of its own, in a mount namespace of the command's.
"""

import shutil
import subprocess
from pathlib import Path
from random import Random

from torture.command import Failure, check_ending, run
from torture.world import World, result_of

__all__ = ["case", "is_possible"]

# A base's states are refused before the first is written.
_FULL = ("No space left", "GB free")
_UNSHARE = ["unshare", "--user", "--map-root-user", "--mount", "--propagation", "private"]
# KiB at $1 mounted at $2, the command run there twice: first so, then with room; all comes out to $3.
_SCRIPT = """
size=$1 disk=$2 out=$3; shift 3
mount -t tmpfs -o size=${size}k none "$disk" || exit 97
"$@"; echo $? > "$out/code"
mount -o remount,size=64m "$disk" || exit 97
"$@"; code=$?
cp -r "$disk/." "$out/" || exit 97
exit $code
"""


def is_possible() -> bool:
    """Whether this machine lets a file system be mounted."""
    if shutil.which("unshare") is None:
        return False
    probe = [*_UNSHARE, "mount", "-t", "tmpfs", "none", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


def case(random: Random, world: World, folder: Path) -> str:
    """Runs one command on a disk too small for it; returns what was done. Raises Failure."""
    name = random.choice(sorted(world.commands))
    command = world.commands[name]
    needed = sum(f.stat().st_size for f in command.folder.rglob("*") if f.is_file()) // 1024
    # tmpfs gives pages of 4 KiB; a kept base's files take a little more than their bytes.
    size = random.randrange(8, 2 * needed + 64)
    disk, out = folder / "disk", folder / "out"
    disk.mkdir()
    out.mkdir()
    words = [*command.words, "-o", str(disk / "runs"), "--resume"]
    before = [*_UNSHARE, "sh", "-c", _SCRIPT, "sh", str(size), str(disk), str(out)]
    told = f"{name} on {size} KiB"
    try:
        ended = run(words, world.folder, before=before)
        first = int((out / "code").read_text())
        if first not in (0, 1):
            raise Failure(f"exit {first} on a full disk: {ended}")
        refusals = [x for x in ended.err.splitlines() if "error: " in x]
        if len(refusals) != first or (first and not any(w in refusals[0] for w in _FULL)):
            raise Failure(f"{len(refusals)} lines say that the disk is full: {ended}")
        check_ending(ended, 0)
        if result_of(out / "runs") != command.result:
            raise Failure(f"another result than an undisturbed run's: {ended}")
    except Failure as failure:
        raise Failure(f"{told}: {failure}") from None
    return f"{told}: {'refused, then finished' if first else 'room enough'}"
