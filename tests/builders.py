"""Synthetic measurements and runs, with figures of the size that an H200 gives. Needs neither torch nor a GPU."""

from pathlib import Path

from dsmla_bench.results import Run
from dsmla_bench.rows import Case, Measurement

ROW_BYTES = {"bf16": 1152, "fp8": 576, "fp8_ds_mla": 656, "nvfp4_ds_mla": 352}
REVISIONS = {"bf16": "raw", "fp8": "per_tensor", "fp8_ds_mla": "pow2", "nvfp4_ds_mla": "rn"}
FLOOR_US, COPY_GBPS = 0.73, 4246.0
DEVICE = "NVIDIA H200"
# µs at 1, 128, 1024, 8192 and 65536 tokens
TOKENS = (1, 128, 1024, 8192, 65536)
TIMES = {
    ("write", "bf16", "triton"): (1.31, 1.42, 2.40, 7.9, 43.0),
    ("write", "fp8", "triton"): (1.33, 1.45, 2.22, 6.1, 29.6),
    ("write", "fp8_ds_mla", "triton"): (1.52, 1.66, 2.45, 6.4, 32.0),
    ("write", "nvfp4_ds_mla", "triton"): (1.63, 1.71, 2.51, 6.6, 34.2),
    ("gather", "bf16", "triton"): (1.41, 1.83, 2.70, 7.3, 43.9),
    ("gather", "fp8", "triton"): (1.50, 1.90, 2.60, 6.5, 33.1),
    ("gather", "fp8_ds_mla", "triton"): (1.61, 1.95, 2.81, 7.0, 34.8),
    ("gather", "nvfp4_ds_mla", "triton"): (1.70, 2.02, 2.79, 6.8, 32.9),
    ("write", "bf16", "vllm"): (2.26, 2.49, 5.84, 28.5, 209.9),
    ("write", "fp8", "vllm"): (2.28, 2.59, 5.97, 29.0, 212.1),
    ("write", "fp8_ds_mla", "vllm"): (2.41, 2.58, 3.79, 9.39, 54.7),
    ("gather", "bf16", "vllm"): (2.62, 4.50, 5.31, 8.85, 47.3),
    ("gather", "fp8", "vllm"): (3.04, 7.72, 8.48, 12.7, 37.7),
    ("gather", "fp8_ds_mla", "vllm"): (2.84, 5.23, 6.09, 8.25, 41.3),
}
MANIFEST = {
    "device": {"name": DEVICE, "arch": "sm90", "driver": "580.159", "uuid": "GPU-0"},
    "packages": {"torch": "2.11.0+cu130", "triton": "3.6.0", "vllm": None},
    "calibration": {"floor_us": FLOOR_US, "quantum_us": 0.032, "copy_gbps": COPY_GBPS},
    "default_revisions": REVISIONS,
}


def case(operation="write", format="fp8_ds_mla", provider="triton", tokens=128, **changes):
    """A case; a gather has up to 8 requests over shuffled pages, a write one over ordered ones."""
    gather = operation != "write"
    fields = {
        "operation": operation,
        "format": format,
        "revision": REVISIONS[format],
        "provider": provider,
        "arch": "sm90",
        "tokens": tokens,
        "requests": min(tokens, 8) if gather else 1,
        "block_size": 64,
        "page_order": "shuffled" if gather else "ordered",
    }
    return Case(**{**fields, **changes})


def timed(case, us, process=0, **facts):
    """An ok measurement: ``us`` is one time or a list of samples by graph."""
    moved = {"bytes_read": case.tokens * 1152, "bytes_written": case.tokens * ROW_BYTES[case.format]}
    machine = {"floor_us": FLOOR_US, "quantum_us": 0.032, "copy_gbps": COPY_GBPS, "device": DEVICE}
    samples = {"graph": us if isinstance(us, list) else [us]}
    return Measurement(
        case, process, "ok", samples=samples, facts={**moved, **machine, "conversion": "native", **facts}
    )


def refused(case, status, reason, **facts):
    """A measurement that gave no time."""
    return Measurement(case, 0, status, reason, facts=facts)


def run_of(folder, measurements, **manifest):
    """A finished run below ``folder`` with these measurements, read back from disk."""
    run = Run.create(Path(folder), {**MANIFEST, **manifest})
    for measurement in measurements:
        run.append(measurement)
    run.finish()
    return Run.load(run.path)


def h200_sweep():
    """A whole sweep with two page orders; vLLM refuses nvfp4_ds_mla, and our nvfp4_ds_mla emulates its conversion."""
    found = []
    for operation in ("write", "gather"):
        for format in ROW_BYTES:
            for provider in ("triton", "vllm"):
                for order in ("ordered", "shuffled"):
                    times = TIMES.get((operation, format, provider))
                    for number, tokens in enumerate(TOKENS):
                        key = case(operation, format, provider, tokens, page_order=order)
                        if times is None:
                            reason = "requires SM100 (Blackwell); got SM90"
                            found.append(refused(key, "skipped", reason))
                            continue
                        conversion = "emulated" if format == "nvfp4_ds_mla" else "native"
                        slower = 1.03 if order == "shuffled" and operation == "write" else 1.0
                        found.append(timed(key, times[number] * slower, conversion=conversion))
    return found


def compiled_sweep():
    """What a machine without a GPU leaves: compiler facts of ours, vllm skipped."""
    found = []
    for operation in ("write", "gather"):
        for format, row_bytes in ROW_BYTES.items():
            for tokens in TOKENS:
                reason = "no sm90 device: checked in the interpreter and cross-compiled"
                facts = {"registers": 40, "spilled_bytes": 0, "shared_bytes": 0, "published_gbps": 4800.0}
                predicted = tokens * (1152 + row_bytes) / 4800e3
                key = case(operation, format, "triton", tokens)
                found.append(refused(key, "compiled", reason, predicted_us=predicted, **facts))
                found.append(refused(case(operation, format, "vllm", tokens), "skipped", "needs a CUDA device"))
    return found
