"""What unpacking the archives of one source may cost."""

from __future__ import annotations

from dataclasses import dataclass

from stratlab.user_error import UserError


class ArchiveError(UserError):
    """Why an archive is not unpacked, with its name."""


@dataclass(frozen=True)
class ArchiveLimits:
    """What the archives of one source may cost."""

    members: int = 20_000
    total_bytes: int = 64 << 30
    ratio: int = 200  # unpacked to packed; Kineto's traces reach 18
    ratio_from_bytes: int = 64 << 20  # small archives may be more repetitive


ARCHIVE_LIMITS = ArchiveLimits()


class Budget:
    """What may still be unpacked of one source: all its archives share it, also those inside of one another. Their own
    word suffices: no more is read of a member than it tells.

    Args:
        packed: bytes of the archives that lie on the disk themselves.
    """

    def __init__(self, packed: int, limits: ArchiveLimits = ARCHIVE_LIMITS) -> None:
        self._limits = limits
        self._most = min(limits.total_bytes, max(limits.ratio_from_bytes, packed * limits.ratio))
        self._bytes = self._members = 0
        self._why = f"more than {self._most / 2**30:.3g} GiB" + (
            f", {limits.ratio} times its size" if self._most == packed * limits.ratio else ""
        )

    def tell(self, size: int, shown: str) -> None:
        """Before a member is unpacked: what its archive says of it. What is refused is not counted."""
        if self._members >= self._limits.members:
            raise ArchiveError(
                f"{shown}: refused, the source holds more than {self._members:,} members [SL-archive-members]"
            )
        if self._bytes + size > self._most:
            raise ArchiveError(f"{shown}: refused, the source unpacks to {self._why} [SL-archive-bomb]")
        self._members += 1
        self._bytes += size

    def mark(self) -> tuple[int, int]:
        """What is used by now, for `give_back`."""
        return self._members, self._bytes

    def give_back(self, mark: tuple[int, int]) -> None:
        """What was used since is unused: an archive was refused, and what it had left was removed."""
        self._members, self._bytes = mark
