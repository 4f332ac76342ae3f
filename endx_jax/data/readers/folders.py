"""Files at a path: a file, those that match a pattern such as `docs/*.md`, or those in a folder and all below it."""

import collections
import fnmatch
import glob
import os
import pathlib
import re

# Names that are left out: hidden files and folders, lock files of office programs, and JavaScript packages.
_LEFT_OUT = re.compile(r"\.|~\$|node_modules$")


def files_at(path: str) -> list[str]:
    """Returns the files at a path, sorted; of a folder, also one that matches a pattern, all below it.

    Each folder is read once, without links if it can be, and so not in circles; a link to a folder above is not
    followed. A link to one of the files is left out. Folders that can't be read are listed like files.
    """
    place = base(path)
    if os.path.exists(path):
        found = [path]
    elif "**" in path:  # `glob` follows links in circles
        return [name for name in files_at(place) if _matches(_parts(name, place), _parts(path, place))]
    else:
        found = [name for name in glob.glob(path) if not any(map(_LEFT_OUT.match, _parts(name, place)))]
    waiting = collections.deque(sorted(found, key=lambda name: (os.path.islink(name), name)))
    seen = {*map(str, pathlib.Path(os.path.realpath(place)).parents)}
    files: list[tuple[bool, str, str]] = []  # (is a link, path, path without links)
    while waiting:
        name = waiting.popleft()  # links to folders come last
        real = os.path.realpath(name)
        try:
            entries = sorted(os.scandir(name), key=lambda entry: entry.name) if real not in seen else []
        except OSError:  # a file, or a folder that can't be read
            files.append((os.path.islink(name), name, real))
            continue
        seen.add(real)
        for entry in entries:
            if _LEFT_OUT.match(entry.name):
                continue
            if entry.is_symlink():
                waiting.append(entry.path)
            elif entry.is_dir():
                waiting.appendleft(entry.path)
            else:
                files.append((False, entry.path, os.path.join(real, entry.name)))
    plain = {real for linked, _, real in files if not linked}
    return sorted(name for linked, name, real in files if not linked or real not in plain)


def base(path: str) -> str:
    """Returns the folder to which the names of the files at a path are relative."""
    if os.path.isdir(path):
        return path
    return os.path.dirname(path if os.path.exists(path) else re.split(r"[*?[]", path, maxsplit=1)[0]) or "."


def _parts(name: str, folder: str) -> list[str]:
    return os.path.relpath(name, folder).split(os.sep)


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Returns true if the parts of a path match those of a pattern, of which `**` stands for any number."""
    if not parts or not pattern:
        return not parts and set(pattern) <= {"**"}
    rest = fnmatch.fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])
    return rest or (pattern[0] == "**" and (_matches(parts, pattern[1:]) or _matches(parts[1:], pattern)))


def endings_in(folder: str) -> str:
    """Returns the number of files of each ending in a folder, as `3 .xlsx, 1 .docx`, for messages."""
    counts = collections.Counter(os.path.splitext(name)[1].lower() for name in files_at(folder))
    listed = [f"{count:,} {ending or 'without an ending'}" for ending, count in counts.most_common(5)]
    return ", ".join(listed) or "no files"
