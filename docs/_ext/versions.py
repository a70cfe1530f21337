"""Write versions.json, for the switcher of versions, and a page that leads to the newest release.

python docs/_ext/versions.py FOLDER      FOLDER has a folder per version: dev, v0.1.0, ...
"""

import json
import re
import sys
from pathlib import Path

RELEASE = re.compile(r"v(\d+)\.(\d+)\.(\d+)$")
LEAD = '<!doctype html><meta http-equiv="refresh" content="0; url={version}/index.html"><title>Chicle</title>\n'


def main(folder: Path) -> None:
    """Newest release first, then "dev"; the first one is where the bare address leads."""
    names = [path.name for path in folder.iterdir() if (path / "index.html").is_file()]
    releases = sorted(filter(RELEASE.match, names), key=lambda name: [int(n) for n in RELEASE.match(name).groups()])
    versions = [*reversed(releases), *(name for name in names if name == "dev")]
    entries = [{"name": name, "version": name.removeprefix("v"), "url": f"../{name}/"} for name in versions]
    (folder / "versions.json").write_text(json.dumps(entries, indent=1) + "\n", encoding="utf-8")
    if versions:
        (folder / "index.html").write_text(LEAD.format(version=versions[0]), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
