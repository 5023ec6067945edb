"""The one version of all four distributions, which the file VERSION holds.

    python scripts/version.py            print it
    python scripts/version.py 0.2.0      set it: writes VERSION and every pyproject.toml
    python scripts/version.py --check    fail unless every pyproject.toml agrees with VERSION

Every pyproject.toml repeats it as plain text, since an sdist cannot read a file outside its own folder.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSION_FILE = ROOT / "VERSION"
# `version = "..."` of the package itself, and `"lox-...==..."` where it pins a sibling.
STAMPS = re.compile(r'(?P<before>^version = "|"lox-[a-z]+==)(?P<version>[^"]*)"', re.MULTILINE)
VALID = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?")


def projects() -> list[Path]:
    return sorted(ROOT.glob("packages/*/pyproject.toml"))


def stamp(text: str, version: str) -> str:
    """`text` of a pyproject.toml, with `version` in every place that names it."""
    return STAMPS.sub(rf'\g<before>{version}"', text)


def set_version(version: str) -> None:
    if not VALID.fullmatch(version):
        raise SystemExit(f"{version!r} is not a version like 0.2.0 or 0.2.0rc1")
    VERSION_FILE.write_text(f"{version}\n")
    for project in projects():
        project.write_text(stamp(project.read_text(), version))


def differences() -> list[str]:
    """Each place where a pyproject.toml does not name the version of VERSION."""
    version = VERSION_FILE.read_text().strip()
    return [
        f"{project.relative_to(ROOT)}: {match[0]} but VERSION says {version}"
        for project in projects()
        for match in STAMPS.finditer(project.read_text())
        if match["version"] != version
    ]


def main(arguments: list[str]) -> None:
    if arguments == ["--check"]:
        wrong = differences()
        if wrong:
            raise SystemExit("\n".join([*wrong, "Set them all: hatch run version X.Y.Z"]))
    elif len(arguments) == 1:
        set_version(arguments[0])
    elif arguments:
        raise SystemExit(__doc__)
    print(VERSION_FILE.read_text().strip())


if __name__ == "__main__":
    main(sys.argv[1:])
