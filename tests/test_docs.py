"""The documentation is true: its tables, figures, pictures, links and examples. ``test_docs_commands`` runs commands.

What the documents say of the example run, of the formats and of the API is written by this file: ``python
tests/test_docs.py`` makes the report of ``examples/h200`` and the picture of the formats again, and the text between
``<!-- generated: X -->`` and ``<!-- end of X -->``. ``make_transcript.py`` writes docs/transcript.md.
"""

import importlib.util
import itertools
import re
import subprocess
import sys
import tempfile
import textwrap

import pytest
import torch
from api_reference import api
from documents import DOCUMENTS, ROOT
from format_maps import byte_maps, drawn_formats, picture

from dsmla_bench.bench import gate
from dsmla_bench.evals import error
from dsmla_bench.evals.error_plan import ErrorPlan
from dsmla_bench.kernels.arch import Architecture
from dsmla_bench.kernels.formats import Geometry, all_formats, default_formats, get_format
from dsmla_bench.kernels.launch import device_arch
from dsmla_bench.kernels.operations import Shape, get_operation
from dsmla_bench.kernels.providers import Provider
from dsmla_bench.reports.report import write_report
from dsmla_bench.reports.tables import EMULATED, LAUNCH_BOUND, NOTES, significant
from dsmla_bench.results import Run
from dsmla_bench.rows import ROW_FIELDS

EXAMPLE = ROOT / "examples" / "h200"
PICTURE = ROOT / "docs" / "formats.svg"
README, FORMATS, MEASURING = (ROOT / name for name in ("README.md", "docs/formats.md", "docs/measuring.md"))
TOKENS = (1, 128, 1024, 8192, 65536)
SUSPECT = "?"
MARKS = {
    "\\" + LAUNCH_BOUND: "\\" + NOTES[LAUNCH_BOUND],
    EMULATED: NOTES[EMULATED],
    SUSPECT: f"{SUSPECT} [suspect](docs/measuring.md#flags-and-statuses): may be wrong, the run's rows say why",
}


# What is written from the example run and from the formats


def results() -> str:
    """The README's table: triton and vllm with shuffled pages, µs by tokens, bandwidth and floor at the largest."""
    run = Run.load(EXAMPLE)
    rows = {
        (row.operation, row.format, row.provider, row.tokens): row
        for row in run.summaries()
        if (row.page_order, row.l2_state) == ("shuffled", "cold")
    }
    lines, reasons = [["", "", *map(str, TOKENS), "GB/s", "of floor"]], {}
    names = sorted(fmt.name for fmt in default_formats())
    for operation, fmt in itertools.product(("write", "gather"), names):
        ours, theirs = ([rows[operation, fmt, name, tokens] for tokens in TOKENS] for name in ("triton", "vllm"))
        lines += [[f"{operation} {fmt}", *_of(ours)], ["", *_of(theirs)]]
        if all(row.us for row in (*ours, *theirs)):
            speed_ups = [their.us / our.us for our, their in zip(ours, theirs, strict=True)]
            lines.append(["", "speed-up", *(f"{significant(times)}×" for times in speed_ups), "", ""])
        reasons |= {f"{row.provider} {fmt} {row.status}: {row.reason}": None for row in (*ours, *theirs) if row.reason}
    text = "".join(cell for line in lines for cell in line)
    notes = [f"- {note}" for note in (*(note for mark, note in MARKS.items() if mark in text), *reasons)]
    return "\n\n".join([_caption(run), _pipes(lines, left=(0, 1)), "\n".join(notes)])


def attention() -> str:
    """The README's tables of the rest of the attention path: ours and production's, µs by tokens."""
    run = Run.load(EXAMPLE)
    parts = []
    for operation, production in (("fused_norm_rope", "vllm"), ("fused_q", "vllm"), ("decode", "flash_mla")):
        rows = [row for row in run.summaries() if row.operation == operation]
        tokens = sorted({row.tokens for row in rows})
        found = {(row.format, row.heads, row.variant, row.provider, row.tokens): row for row in rows}
        lines = [[operation, "", *map(str, tokens), "GB/s", "of floor"]]
        shapes = sorted({key[:3] for key in found}, key=lambda shape: (shape[0], shape[1] or 0, shape[2] or ""))
        for format, heads, variant in shapes:
            label = ", ".join([format, *([f"{heads} heads"] if heads else []), *([variant] if variant else [])])
            ours, theirs = ([found[format, heads, variant, name, n] for n in tokens] for name in ("triton", production))
            lines.append([label, *_of(ours)])
            if any(row.us for row in theirs):
                lines.append(["", *_of(theirs)])
        parts.append(_pipes(lines, left=(0, 1)))
    text = "".join(parts)
    return "\n\n".join([*parts, "\n".join(f"- {note}" for mark, note in MARKS.items() if mark in text)])


def _caption(run: Run) -> str:
    device, packages = run.manifest["device"]["name"], run.manifest["packages"]
    processes = run.manifest["config"]["processes"]
    timed = run.rows().query("status == 'ok'")
    fewer = int((timed["processes"] < processes).sum())
    text = (
        f"Times of one launch in µs by number of tokens, then GB/s and the share of the floor at {TOKENS[-1]} tokens: "
        f"{device}, torch {packages['torch']}, Triton {packages['triton']}, cold L2, pages of 64 tokens in shuffled "
        f"order, gathers over 8 requests, medians of {processes} processes"
        + (f" (of fewer for {fewer} of {len(timed)} rows: the run was stopped before its end)." if fewer else ".")
    )
    return textwrap.fill(text, 120)


def _of(rows) -> list[str]:
    """A provider's line: times with their marks, then bandwidth and share of the floor of the last one."""
    times = []
    for row in rows:
        holds = {"\\" + LAUNCH_BOUND: row.launch_bound, EMULATED: row.conversion == "emulated", SUSPECT: row.suspect}
        times.append(significant(row.us) + "".join(mark for mark, found in holds.items() if found and row.us))
    last = rows[-1]
    share = f"{100 * last.bound_share:.1f} %" if last.bound_share else significant(None)
    return [last.provider, *times, significant(last.gbps), share]


def formats() -> str:
    """The formats: sizes, what a row holds in the default revision, and all revisions."""
    lines = [["format", "bytes per token", "per page of 64", "bf16 / this", "a row, in byte order", "revisions"]]
    for fmt in default_formats():
        fields = ", ".join(f"{field.count} {field.dtype} {field.name}" for field in fmt.fields(Geometry()))
        revisions = ", ".join(f"`{other.revision}`" for other in all_formats() if other.name == fmt.name)
        ratio = get_format("bf16").row_bytes() / fmt.row_bytes()
        sizes = [str(fmt.row_bytes()), str(fmt.page_bytes(64)), f"{ratio:.3g}"]
        lines.append([f"`{fmt.name}`", *sizes, fields, revisions])
    return _pipes(lines, left=(0, 4, 5)) + "\n\nThe revision named first is the default."


def selftest() -> str:
    """What ``dsmla-bench selftest`` printed on the machine of the example run."""
    return f"```\n{(EXAMPLE / 'selftest.txt').read_text(encoding='utf-8').rstrip()}\n```"


def agreement() -> str:
    """How the methods agree, by provider, and which rows they make suspect."""
    timed = Run.load(EXAMPLE).rows().query("status == 'ok'")
    timed = timed.assign(ratio=timed["us"] / timed["us_check"], less=timed["us_check"] - timed["us"])
    flagged = timed[timed["suspect"].fillna(False)]
    lines = [["provider", "timed rows", "suspect", "graph less activity, median", "activity / graph"]]
    for provider, rows in timed.groupby("provider"):
        counts = [str(len(rows)), str(rows["suspect"].sum())]
        lines.append([provider, *counts, f"{rows['less'].median():.2f} µs", _span(rows["ratio"])])
    which = [["suspect", "rows", "activity / graph", "tokens"]]
    for names, rows in flagged.groupby(["operation", "format", "provider"]):
        tokens = ", ".join(map(str, sorted(rows["tokens"].unique())))
        which.append([" ".join(names), str(len(rows)), _span(rows["ratio"]), tokens])
    clean = len(timed) - len(flagged)
    text = f"{clean} of {len(timed)} timed rows ({100 * clean / len(timed):.1f} %) are not suspect."
    return "\n\n".join([text, *(_pipes(table, left=(0,)) for table in (lines, which) if len(table) > 1)])


def _span(values) -> str:
    return " to ".join(sorted({f"{values.min():.2f}", f"{values.max():.2f}"}))


def _pipes(lines: list[list[str]], left: tuple[int, ...]) -> str:
    """A Markdown table that reads as plain text too; the columns ``left`` are text, the others numbers."""
    widths = [max(3, *(len(cell) for cell in column)) for column in zip(*lines, strict=True)]
    rule = [":" + "-" * (width - 1) if n in left else "-" * (width - 1) + ":" for n, width in enumerate(widths)]
    aligned = [
        [cell.ljust(widths[n]) if n in left else cell.rjust(widths[n]) for n, cell in enumerate(line)] for line in lines
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (aligned[0], rule, *aligned[1:]))


def generated(text: str) -> str:
    """A document with everything between its marks as it should be."""
    return GENERATED.sub(lambda found: f"{found[1]}\n{BLOCKS[found[2]]()}\n\n{found[3]}", text)


def errors() -> str:
    """What ``dsmla-bench error --sigma 1,0.001 --tokens 1024`` finds of the formats outside the lab."""
    keys = tuple(fmt.key for fmt in all_formats() if not fmt.lab)
    plan = ErrorPlan(keys, sigmas=(1.0, 1e-3), tokens=1024, device="cpu", providers=("reference",))
    with tempfile.TemporaryDirectory() as folder:
        run = plan.create_run(folder)
        list(error.execute(plan, run))
        table = run.table("errors")
    lines = [["sigma", "format", "part", "rel-L2", "SNR dB", "clipped", "flushed"]]
    for row in table[table["part"] != "both"].itertuples():
        figures = [significant(row.rel_l2), significant(row.snr_db), str(row.clipped), str(row.flushed)]
        lines.append([f"{row.sigma:g}", f"`{row.format}:{row.revision}`", row.part, *figures])
    return _pipes(lines, left=(1, 2))


BLOCKS = {
    "results": results,
    "attention": attention,
    "formats": formats,
    "selftest": selftest,
    "agreement": agreement,
    "byte_maps": byte_maps,
    "errors": errors,
    "api": api,
}
GENERATED = re.compile(r"(<!-- generated: (\w+) -->\n).*?(<!-- end of \2 -->)", re.DOTALL)


# The tests

every_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: str(document.relative_to(ROOT)))


@every_document
def test_what_is_written_from_the_example_run_and_the_formats_is_current(document):
    text = document.read_text(encoding="utf-8")
    assert text == generated(text), "run python tests/test_docs.py"


def test_every_generated_block_has_one_place():
    places = [found[2] for document in DOCUMENTS for found in GENERATED.finditer(document.read_text(encoding="utf-8"))]
    assert sorted(places) == sorted(BLOCKS)


def test_the_report_of_the_example_run_is_current(tmp_path):
    for file in write_report(Run.load(EXAMPLE), tmp_path):
        committed = EXAMPLE / "report" / file.name
        assert committed.is_file()
        if file.suffix not in (".png", ".svg"):
            assert committed.read_bytes() == file.read_bytes(), f"{file.name}: run python tests/test_docs.py"


def test_the_picture_of_the_formats_is_current_and_to_scale():
    text = PICTURE.read_text(encoding="utf-8")
    assert text == picture(), "run python tests/test_docs.py"
    widths = [float(width) for width in re.findall(r'<rect x="[\d.]+" y="\d+" width="([\d.]+)" height="30"', text)]
    nbytes = [field.nbytes for fmt in drawn_formats() for field in fmt.fields(fmt.geometry or Geometry())]
    assert widths == pytest.approx([800 * count / 1152 for count in nbytes], abs=0.01)


def test_every_column_of_a_row_is_explained_once():
    section = MEASURING.read_text(encoding="utf-8").split("\n## Columns\n")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`[^|]+)", section, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", "".join(cells))) == sorted(ROW_FIELDS)


@every_document
def test_links_and_pictures_lead_somewhere(document):
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"\w+:", target):
            continue
        path, _, fragment = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), target
        if fragment:
            heads = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert fragment in {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}, target


def test_tasks_of_dev_in_the_documents_exist():
    tasks = re.findall(r"^def (\w+)\(session", (ROOT / "noxfile.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(re.findall(r"\./dev (\w+)", README.read_text(encoding="utf-8"))) <= set(tasks)


def test_excerpts_are_what_their_files_say():
    texts = [document.read_text(encoding="utf-8") for document in DOCUMENTS]
    excerpts = [found for text in texts for found in re.findall(r"```\w+\n# (\S+/\S+)\n(.*?)```", text, re.DOTALL)]
    assert {path for path, _ in excerpts} >= {"examples/my_format/my_format.py", "examples/my_task/codes.py"}
    for path, text in excerpts:
        assert text in (ROOT / path).read_text(encoding="utf-8"), f"{path} has no longer\n{text}"


def test_the_code_of_the_page_on_formats_runs(device, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", FORMATS.read_text(encoding="utf-8"), re.DOTALL)
    exec(code.replace('"cuda"', f'"{device}"'), {})
    assert re.fullmatch(r"tensor\(\[(0\.\d+(, )?){4}\].*\)\n", capsys.readouterr().out)


def test_the_notebook_runs_without_torch():
    script = "import runpy, sys; sys.modules.update(torch=None, triton=None); runpy.run_path(sys.argv[1])"
    command = [sys.executable, "-c", script, str(ROOT / "examples" / "notebook.py")]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(re.findall(r"^\w.*\?", done.stdout, re.MULTILINE)) == 3, "three questions"


def example(name: str):
    """A module of ``examples``, imported from its file."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def assert_right(operation, fmt, device, bind):
    """``bind(inputs)`` writes the bytes of the reference."""
    generator = torch.Generator(device).manual_seed(0)
    inputs = operation.make_inputs(fmt, Shape(5, requests=2, block_size=4, shuffled=True), device, generator)
    outputs = operation.outputs(inputs)
    expected = gate.outputs_of(operation.reference(fmt, inputs), outputs)
    result = gate.compare(operation, gate.outputs_of(bind(inputs), outputs), expected)
    assert (result.bytes_differing, result.bytes_compared > 0) == (0, True)


@pytest.mark.parametrize("fmt", default_formats(), ids=lambda fmt: fmt.name)
def test_the_example_operation_is_right_to_the_byte_in_every_format(fmt, device):
    (operation,) = example("read_rope").OPERATIONS
    assert_right(operation, fmt, device, lambda inputs: operation.plan(fmt, inputs, device_arch(device)).run)
    assert operation.traffic(fmt, Shape(5)).bytes_written == 5 * 128


def test_the_example_provider_is_one_and_right_to_the_byte(device):
    (provider_class,) = example("eight_warps").PROVIDERS
    provider, fmt, arch = provider_class({}), get_format("fp8_ds_mla"), Architecture.parse("sm90")
    assert {name for name in vars(Provider) if not name.startswith("_")} <= set(dir(provider))
    assert provider.why_not(get_operation("write"), fmt, Architecture.parse("sm80"))
    for operation in (get_operation("write"), get_operation("gather")):
        assert provider.why_not(operation, fmt, arch) is None
        assert_right(operation, fmt, device, lambda inputs, op=operation: provider.bind(op, fmt, inputs, arch))


if __name__ == "__main__":
    write_report(Run.load(EXAMPLE))
    PICTURE.write_text(picture(), encoding="utf-8")
    for document in DOCUMENTS:
        document.write_text(generated(document.read_text(encoding="utf-8")), encoding="utf-8")
