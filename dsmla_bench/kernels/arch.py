"""GPU architectures: their names, the conversions they have in hardware, and published figures.

``Architecture.parse("sm90")`` and ``Architecture.from_capability((9, 0))`` give the same value. ``name`` (``sm90``) is
what the command line takes and rows carry; ``label`` (``sm_90``) is NVIDIA's spelling, used in sentences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Architecture:
    """An NVIDIA GPU architecture by compute capability."""

    major: int
    minor: int

    @classmethod
    def from_capability(cls, capability: tuple[int, int]) -> Architecture:
        """The architecture of a compute capability such as (9, 0)."""
        return cls(*capability)

    @classmethod
    def parse(cls, text: str) -> Architecture:
        """``sm90``, ``sm_90`` or ``sm_90a``, the last digit being the minor version. Raises ValueError otherwise."""
        match = re.fullmatch(r"sm_?(\d{1,2})(\d)[af]?", text.strip().lower())
        if not match:
            raise ValueError(
                f"architecture {text!r} is not of the form sm90; known: {', '.join(a.name for a in KNOWN)}"
            )
        return cls(int(match[1]), int(match[2]))

    @property
    def name(self) -> str:
        """``sm90``: the key used on the command line and in rows."""
        return f"sm{self.major}{self.minor}"

    @property
    def label(self) -> str:
        """``sm_90``: NVIDIA's spelling."""
        return f"sm_{self.major}{self.minor}"

    @property
    def number(self) -> int:
        """90 for sm_90: what compilers take as a target."""
        return 10 * self.major + self.minor

    @property
    def has_e4m3(self) -> bool:
        """Whether the e4m3 conversion (``cvt.rn.satfinite.e4m3x2.f32``) exists: sm_89 and later (PTX ISA 8.1)."""
        return self >= Architecture(8, 9)

    @property
    def has_e2m1(self) -> bool:
        """Whether the e2m1 conversion (``cvt.rn.satfinite.e2m1x2.f32``) exists: sm_100 and later (PTX ISA 8.6)."""
        return self.major >= 10

    @property
    def published_gbps(self) -> float | None:
        """Memory bandwidth that NVIDIA publishes for the part named by ``published_part``, GB/s; None if unknown."""
        return _PUBLISHED[self.name][1] if self.name in _PUBLISHED else None

    @property
    def published_part(self) -> str | None:
        """The part that ``published_gbps`` belongs to."""
        return _PUBLISHED[self.name][0] if self.name in _PUBLISHED else None


_PUBLISHED = {
    "sm80": ("A100 SXM 80 GB", 2039.0),
    "sm89": ("L40S", 864.0),
    "sm90": ("H200 SXM", 4800.0),
    "sm100": ("B200 SXM", 8000.0),
    "sm103": ("B300 SXM", 8000.0),
    "sm120": ("RTX PRO 6000 Blackwell", 1792.0),
}
"""Part and memory bandwidth in GB/s, from NVIDIA's data sheets."""

KNOWN = tuple(Architecture.parse(name) for name in ("sm80", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121"))
"""The architectures that the tables list."""
