"""Files at a path: one file, those that match a pattern such as `docs/*.md`, or all below a folder."""

import collections
import glob
import os
import pathlib
import re

# Names that are left out: hidden files and folders, lock files of office programs, and JavaScript packages.
_LEFT_OUT = re.compile(r"\.|~\$|node_modules$")


def files_at(path: str) -> list[str]:
    """Returns the files at a path, sorted; a folder, or one that matches a pattern, stands for all files below it.

    Each folder is read once, by a path without links if there is one, so circular links do no harm. A link to a
    folder above the path is not followed, and one to a listed file is left out. Unreadable folders are listed as files.
    """
    head, recursive, tail = path.rpartition(f"**{os.sep}")
    if recursive and head[-1:] in ("", os.sep) and not os.path.exists(path):  # `glob` would follow links in circles
        return [name for name in files_at(head or ".") if pathlib.PurePath(name).match(tail or "*")]
    place, found = base(path), [path] if os.path.exists(path) else glob.glob(path)
    if found != [path]:
        found = [n for n in found if not any(map(_LEFT_OUT.match, os.path.relpath(n, place).split(os.sep)))]
    waiting = collections.deque(sorted(found, key=lambda name: (os.path.islink(name), name)))
    seen = {*map(str, pathlib.Path(os.path.realpath(place)).parents)}
    files: list[tuple[bool, str, str]] = []  # (is a link, path, path without links)
    while waiting:
        name = waiting.popleft()  # links come last, so that folders are read by their own paths
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


def endings_in(folder: str) -> str:
    """Returns the number of files of each ending in a folder, as `3 .xlsx, 1 .docx`, for messages."""
    counts = collections.Counter(os.path.splitext(name)[1].lower() for name in files_at(folder))
    listed = [f"{count:,} {ending or 'without an ending'}" for ending, count in counts.most_common(5)]
    return ", ".join(listed) or "no files"
