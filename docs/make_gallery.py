"""
Run the programs of the page gallery.md, one after another, and put their films beside the page.

Run it in the root of the repository: ``python docs/make_gallery.py``. Names of films, such as
``bits``, choose some of them.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGE = Path(__file__).with_name("gallery.md")
FILMS = Path(__file__).with_name("images") / "gallery"


def programs() -> dict[str, str]:
    """
    Return the programs of the page.

    :return: programs by the names of their films, without the ending
    """
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return {re.findall(r'"(\w+)\.gif"', block)[0]: block for block in blocks}


def main() -> None:
    """Make the films that the command line names, or all of them."""
    found = programs()
    unknown = set(sys.argv[1:]) - found.keys()
    if unknown:
        sys.exit(f"there is no film {', '.join(sorted(unknown))}, but {', '.join(found)}")
    FILMS.mkdir(parents=True, exist_ok=True)
    for name in sys.argv[1:] or found:
        began = time.perf_counter()
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, "-c", found[name]], cwd=folder, check=True)
            film = (Path(folder) / f"{name}.gif").read_bytes()
        (FILMS / f"{name}.gif").write_bytes(film)
        print(f"{name}: {time.perf_counter() - began:.0f} s, {len(film) / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
