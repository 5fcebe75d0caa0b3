"""Run as a script, in a process that does not interpret: what the compiler makes of kernels, as JSON.

nvfp4        for targets and revisions of nvfp4_ds_mla: the conversions in the PTX and in the machine code of its write
toys         for ``toys/toy_regressions``: the static facts of each copy, with the bytes that its local stores write
cached       how often a kernel was compiled: when first asked for, again, in another process's place, after its
             file was spoilt, and on another target; and whether the facts were equal throughout
"""

import json
import re
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, str(Path(__file__).with_name("toys")))

import torch
import toy_regressions as toys

from dsmla_bench.bench import static_facts as facts_module
from dsmla_bench.bench.compile import DisassemblyError, compile_launch, disassemble
from dsmla_bench.bench.sass import width_of
from dsmla_bench.bench.static_facts import cache_folder, static_facts
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import get_format
from dsmla_bench.kernels.operations import Shape, get_operation

SM90, SM100 = Architecture(9, 0), Architecture(10, 0)


def write(fmt, arch, tokens=65536):
    operation = get_operation("write")
    return operation.plan(
        fmt, operation.make_inputs(fmt, Shape(tokens), torch.device("meta"), torch.Generator()), arch.number
    )


def conversions(fmt, arch):
    compiled = compile_launch(write(fmt, arch), arch)
    ptx = sorted(set(re.findall(r"cvt\.\S*(?:e2m1|e4m3)\S*", compiled.ptx)))
    try:
        sass = disassemble(compiled.cubin)
    except DisassemblyError as error:
        return {"ptx": ptx, "unread": str(error)}
    return {"ptx": ptx, "sass": sorted(set(re.findall(r"F2FP\.\S*(?:E2M1|E4M3)\S*", sass)))}


def toy(fmt, arch):
    launch = write(fmt, arch)
    sass = disassemble(compile_launch(launch, arch).cubin)
    stored = sum(width_of(name) // 8 for name in re.findall(r"\bSTL[.\w]*", sass))
    return {"local_store_bytes": stored, **static_facts(launch, arch)}


def counted():
    """Compiles, with the facts, of the four ways to ask."""
    fmt = get_format("bf16")
    found, counts = [], []
    with mock.patch.object(facts_module, "compile_launch", wraps=compile_launch) as compiling:

        def ask(arch):
            before = compiling.call_count
            found.append(static_facts(write(fmt, arch, tokens=8192), arch))
            counts.append(compiling.call_count - before)

        known = set(cache_folder().glob("*"))
        ask(SM90)
        ask(SM90)
        [file] = set(cache_folder().glob("*")) - known
        whole = file.read_text()
        for spoilt in (
            "",
            whole[: len(whole) // 2],
            "[]",
            whole.replace("registers", "register"),
            whole[:-1] + ', "x": 1}',
        ):
            file.write_text(spoilt)
            ask(SM90)
        file.write_text(whole.replace('"registers": ', '"registers": "many", "was": '))
        ask(SM90)
        equal = all(facts == found[0] for facts in found) and file.read_text() == whole
        ask(SM100)
    return {"compiled": counts, "equal": equal, "files": [path.suffix for path in cache_folder().glob("*")]}


def main():
    targets = [Architecture.parse(name) for name in ("sm90", "sm100", "sm103", "sm120")]
    formats = [get_format(f"nvfp4_ds_mla:{revision}") for revision in ("rn", "up")]
    copies = {"toy": toys.TOY, "spilling": toys.SPILLING, "by_16_bits": toys.BY_16_BITS}
    copies |= {"nvfp4": toys.NVFP4, "without_native": toys.WITHOUT_NATIVE}
    print(
        json.dumps(
            {
                "nvfp4": {f"{fmt.revision} {arch.name}": conversions(fmt, arch) for fmt in formats for arch in targets},
                "toys": {name: toy(fmt, SM100) for name, fmt in copies.items()},
                "cached": counted(),
            }
        )
    )


if __name__ == "__main__":
    main()
