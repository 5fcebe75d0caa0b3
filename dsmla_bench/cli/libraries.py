"""The options that name compiled operators of other projects, which providers load instead of an installed package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

VllmLibrary = Annotated[
    Path | None,
    typer.Option(
        "--vllm-library",
        envvar="DSMLA_BENCH_VLLM_LIBRARY",
        help="vLLM's compiled cache operators (a .so), instead of an installed vLLM.",
    ),
]

FlashMlaLibrary = Annotated[
    Path | None,
    typer.Option(
        "--flash-mla-library",
        envvar="DSMLA_BENCH_FLASH_MLA_LIBRARY",
        show_envvar=False,  # too long for help on 80 columns
        help="FlashMLA's compiled operators (a .so), instead of an installed one.",
    ),
]


def libraries(*, elsewhere: bool = False, **paths: Path | None) -> dict[str, Path]:
    """The compiled libraries that were given, by provider; ``elsewhere``: their paths are those of other machines.

    Raises ValueError for a file that is not there. One that is there and cannot be loaded is a reason to skip rows.
    """
    given = {provider: path for provider, path in paths.items() if path is not None}
    for provider, path in given.items():
        if not elsewhere and not path.is_file():
            option = f"--{provider.replace('_', '-')}-library"
            raise ValueError(f"{option} {path}: no such file; name the compiled operators, a .so")
    return given
