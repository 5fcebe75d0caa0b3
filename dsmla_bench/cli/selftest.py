"""``dsmla-bench selftest``: does the harness read back what is known on this machine?"""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from dsmla_bench.cli.common import ExitCode, choose, complain, print_json, print_text


def selftest(
    methods: Annotated[str | None, typer.Option(help="activity, graph or both. Default: both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
) -> None:
    """Time kernels whose duration is known, and print what this machine resolves. Needs a GPU.

    Examples: dsmla-bench selftest; dsmla-bench selftest --methods graph --json
    """
    from dsmla_bench.bench.device import METHODS
    from dsmla_bench.bench.manifest import find_device

    chosen = choose(methods, list(METHODS), "method")
    found = find_device()
    if found is None:
        complain("no CUDA device here; selftest times real kernels and needs one")
        raise typer.Exit(ExitCode.NO_DEVICE)
    from dsmla_bench.bench.cuda import CudaDevice
    from dsmla_bench.bench.selftest import resolution, run_checks

    device = CudaDevice(found[0])
    checks = list(run_checks(device, chosen))
    facts = {method: resolution(device, method) for method in chosen}
    passed = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": passed, "checks": [dataclasses.asdict(check) for check in checks], "resolution": facts})
    else:
        for check in checks:
            verdict = "ok" if check.ok else "WRONG"
            line = f"{verdict:<6}{check.method:<10}{check.name:<26}{check.found:>9.3f} {check.unit}"
            print_text(f"{line}   expected {check.expected}")
        for method, values in facts.items():
            print_text(
                f"{method}: empty kernel {values['floor_us']:.3f} µs, quantum {values['quantum_us'] or 0:.4f} µs, "
                f"copy {values['copy_gbps']:.0f} GB/s, smallest effect {values['smallest_effect']:.2%} of 5 µs"
            )
    raise typer.Exit(ExitCode.FINE if passed else ExitCode.FINDINGS)
