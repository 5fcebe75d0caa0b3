"""Asking for memory ahead of the load that waits for it, in compiled kernels; the interpreter knows nothing of it."""

from __future__ import annotations

import triton
import triton.language as tl

LINE_BYTES = tl.constexpr(128)
"""What one request brings into L2."""


@triton.jit
def prefetch(ptr, wanted):
    """Ask for the lines at ``ptr`` where ``wanted``, without waiting for them. Both of any one shape."""
    tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.ne.s32 p, $2, 0; @p prefetch.global.L2 [$1]; mov.u32 $0, 0; }",
        "=r,l,r",
        [ptr.to(tl.int64), wanted.to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
