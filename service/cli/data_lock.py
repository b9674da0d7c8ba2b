"""Only one broker may use a data folder: this makes the folder, locks it, and finds out early whether it can be
written.

The lock is the kernel's (`flock` on `.lock`, the file that Kafka locks too), so it ends with the process. `oncelog
serve` holds it while it runs. `oncelog log` tests it to know whether a broker writes there.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

LOCK_FILE = ".lock"


class FolderUnusable(Exception):
    """The folder can't be a data folder now; the text is one line for the operator."""


@contextlib.contextmanager
def locked(folders: Sequence[Path]) -> Iterator[None]:
    """Hold the locks of all folders, made if they are missing. Raises FolderUnusable."""
    with contextlib.ExitStack() as held:
        known: list[Path] = []
        for folder in folders:
            if folder.resolve() in known:
                raise FolderUnusable(f"the data folder {folder} is named twice")
            known.append(folder.resolve())
            held.enter_context(_lock(folder))
        yield


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise FolderUnusable(f"the data folder {folder} can't be written: {_why(error)}") from None
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FolderUnusable(
                f"the data folder {folder} is in use by {_holder(descriptor)}; --data FOLDER takes another"
            ) from None
        try:
            # Writing our process id also tests whether the disk accepts writes at all.
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)
            os.fsync(descriptor)
            if not os.access(folder, os.W_OK | os.X_OK):  # an old lock may be writable where nothing new can be made
                raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise FolderUnusable(f"the data folder {folder} can't be written: {_why(error)}") from None
        yield
    finally:
        os.close(descriptor)


def is_locked(folder: Path) -> bool:
    """Whether a broker runs on the folder now. A folder that has no lock file never saw one."""
    try:
        descriptor = os.open(folder / LOCK_FILE, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _holder(descriptor: int) -> str:
    text = os.pread(descriptor, 20, 0).strip()
    return f"another broker (process {text.decode()})" if text.isdigit() else "another broker"


def _why(error: OSError) -> str:
    if error.errno == errno.ENOSPC:
        return "the disk is full"
    if error.errno == errno.EEXIST:
        return "there is a file of that name"
    return error.strerror or str(error)
