"""GPU architectures: their names, the conversions they have in hardware, what an SM holds, and a part of each.

``Architecture.parse("sm90")`` and ``Architecture.from_capability((9, 0))`` give the same value. ``name`` (``sm90``) is
what the command line takes and rows carry; ``label`` (``sm_90``) is NVIDIA's spelling, used in sentences.

Two tables, both for reading compiled kernels without a device:

* ``limits``: what a streaming multiprocessor holds, from the CUDA programming guide's table of technical
  specifications per compute capability. For 12.x that table has 24 blocks, which is what devices report too; the
  Blackwell tuning guide has 32.
* ``part``: one product of the architecture. The bandwidth is that of NVIDIA's data sheet. SMs and L2 are nominal, from
  NVIDIA's architecture papers (A100, Ada, Hopper, RTX Blackwell) and, where those name the full chip only (B200, B300),
  of the products as they are sold. A device reports its own: a run that measures has them in its manifest.
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
        match = re.fullmatch(r"sm_?(\d{1,2})(\d)[af]?", text.strip().lower(), re.ASCII)
        if match and int(match[1]) in _MAJORS:
            return cls(int(match[1]), int(match[2]))
        wrong = "is none that Triton compiles for" if match else "is not of the form sm90"
        raise ValueError(f"architecture {text!r} {wrong}; known: {', '.join(a.name for a in KNOWN)}")

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
        """Whether fp32 becomes e4m3 in one rounding: from sm_90 on.

        sm_89 has the instruction (``cvt.rn.satfinite.e4m3x2.f32``, PTX ISA 8.1), but Triton 3.6 to 3.9 goes through a
        truncated fp16 there, which gives 1 + 2^-4 + 2^-13 the code of 1.0 instead of 1.125.
        """
        return self >= Architecture(9, 0)

    @property
    def has_e2m1(self) -> bool:
        """Whether the e2m1 conversion (``cvt.rn.satfinite.e2m1x2.f32``) exists: sm_100 and later (PTX ISA 8.6)."""
        return self.major >= 10

    @property
    def part(self) -> Part | None:
        """A product of this architecture with its published figures; None for one that is not in the table."""
        return _PARTS.get(self.name)

    @property
    def published_gbps(self) -> float | None:
        """Memory bandwidth that NVIDIA publishes for ``part``, GB/s; None if unknown."""
        return self.part.gbps if self.part else None

    @property
    def published_part(self) -> str | None:
        """The name of the part that ``published_gbps`` belongs to."""
        return self.part.name if self.part else None

    @property
    def limits(self) -> MultiprocessorLimits | None:
        """What one multiprocessor holds; None for an architecture that is not in the table."""
        return _LIMITS.get(self.name)


@dataclass(frozen=True)
class Part:
    """A product: its multiprocessors, its L2 in bytes (nominal), and its memory bandwidth in GB/s."""

    name: str
    sms: int
    l2_bytes: int
    gbps: float


@dataclass(frozen=True)
class MultiprocessorLimits:
    """What can be resident on one multiprocessor: 32-bit registers, bytes of shared memory, warps, and blocks."""

    registers: int
    shared_bytes: int
    warps: int
    blocks: int


_MIB = 1 << 20
_PARTS = {
    "sm80": Part("A100 SXM 80 GB", 108, 40 * _MIB, 2039.0),
    "sm89": Part("L40S", 142, 96 * _MIB, 864.0),
    "sm90": Part("H200 SXM", 132, 50 * _MIB, 4800.0),
    "sm100": Part("B200 SXM", 148, 126 * _MIB, 8000.0),
    "sm103": Part("B300 SXM", 148, 126 * _MIB, 8000.0),
    "sm120": Part("RTX PRO 6000 Blackwell", 188, 128 * _MIB, 1792.0),
}
_LIMITS = {
    "sm80": MultiprocessorLimits(65536, 164 * 1024, 64, 32),
    "sm89": MultiprocessorLimits(65536, 100 * 1024, 48, 24),
    "sm90": MultiprocessorLimits(65536, 228 * 1024, 64, 32),
    "sm100": MultiprocessorLimits(65536, 228 * 1024, 64, 32),
    "sm103": MultiprocessorLimits(65536, 228 * 1024, 64, 32),
    "sm120": MultiprocessorLimits(65536, 100 * 1024, 48, 24),
    "sm121": MultiprocessorLimits(65536, 100 * 1024, 48, 24),
}

_MAJORS = range(7, 13)
KNOWN = tuple(Architecture.parse(name) for name in ("sm80", "sm89", "sm90", "sm100", "sm103", "sm120", "sm121"))
"""The architectures that the tables list."""
