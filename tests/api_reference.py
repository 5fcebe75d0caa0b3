"""Makes docs/api.md from signatures and docstrings, without importing what it describes."""

import ast
import re
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[1]
DESCRIBED = {
    "dsmla_bench.results": ("Run", "latest_run"),
    "dsmla_bench.rows": ("Case", "Measurement"),
    "dsmla_bench.history": ("History",),
    "dsmla_bench.kernels.formats": ("all_formats", "default_formats", "get_format"),
    "dsmla_bench.kernels.formats.base": ("Geometry", "Field", "CacheFormat"),
    "dsmla_bench.kernels.operations.base": ("Shape", "Traffic", "Operation"),
    "dsmla_bench.kernels.operations.pages": ("new_cache", "open_cache", "load_rows", "store_rows", "fields_of"),
    "dsmla_bench.kernels.operations.write": ("concat_and_cache",),
    "dsmla_bench.kernels.operations.gather": ("cp_gather_and_upconvert",),
    "dsmla_bench.kernels.operations.fused_norm_rope": ("FusedNormRopeInputs", "fused_norm_rope"),
    "dsmla_bench.kernels.operations.fused_q": ("FusedQInputs", "fused_q"),
    "dsmla_bench.kernels.operations.decode": ("sparse_decode",),
    "dsmla_bench.kernels.providers.base": ("Provider",),
    "dsmla_bench.kernels.launch": ("Launch",),
    "dsmla_bench.kernels.arch": ("Architecture",),
    "dsmla_bench.kernels.selection": ("Question", "Selection", "Refusal", "select"),
    "dsmla_bench.kernels.capacity": ("find_cached_model", "capacity", "Capacity"),
    "dsmla_bench.evals.simulated_cache": ("CacheVariant", "attach"),
    "dsmla_bench.evals.metrics": ("Figures",),
    "dsmla_bench.evals.paired_statistics": ("tango_interval", "mcnemar_p", "holm", "bootstrap_t"),
    "dsmla_bench.reports.kernel_frame": ("kernel_frame",),
    "dsmla_bench.reports.comparison": ("compare", "Comparison"),
    "dsmla_bench.reports.report": ("write_report",),
}
"""Module → what of it is meant for other people's code."""


def api() -> str:
    """A list of the modules, then every one with its manual and what is described of it."""
    contents = [
        f"- [{module}](#{module.replace('.', '')}): {', '.join(f'`{name}`' for name in names)}"
        for module, names in DESCRIBED.items()
    ]
    return "\n\n".join(["\n".join(contents), *(part for module in DESCRIBED for part in _module(module))])


def _module(name: str) -> list[str]:
    tree = _tree(name)
    parts = [f"## {name}", _text(tree)]
    for wanted in DESCRIBED[name]:
        node = _definition(tree, wanted)
        parts += _class(node) if isinstance(node, ast.ClassDef) else _function(node)
    return parts


def _tree(name: str) -> ast.Module:
    path = ROOT.joinpath(*name.split("."))
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _definition(tree: ast.Module, wanted: str) -> ast.ClassDef | ast.FunctionDef:
    """The class or function of that name, in this module or in the one that it is imported from."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == wanted:
            return node
        if isinstance(node, ast.ImportFrom) and wanted in {alias.name for alias in node.names}:
            return _definition(_tree(node.module), wanted)
    raise ValueError(f"the module has no class or function {wanted}")


def _function(node: ast.FunctionDef) -> list[str]:
    return [f"### {node.name}", _code(_signature(node)), _text(node)]


def _class(node: ast.ClassDef) -> list[str]:
    """Fields as they stand in the source, the docstring, then a line for each public method."""
    bases = f"({', '.join(map(ast.unparse, node.bases))})" if node.bases else ""
    assigned = [ast.unparse(part) for part in node.body if isinstance(part, ast.AnnAssign)]
    fields = [f"    {field}" for field in assigned if not field.startswith("_")]
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef) and not part.name.startswith("_")]
    lines = [f"- `{_call(method)}`: {_first_paragraph(method)}" for method in methods]
    head = _code("\n".join([f"class {node.name}{bases}", *fields]))
    return [f"### {node.name}", head, _text(node), *(["\n".join(lines)] if lines else [])]


def _call(node: ast.FunctionDef) -> str:
    """A method as one calls it: without ``self``, and a property without brackets."""
    kinds = {ast.unparse(decorator) for decorator in node.decorator_list}
    if kinds & {"property", "functools.cached_property"}:
        return node.name
    given = [argument.arg for argument in (*node.args.args[1:], *node.args.kwonlyargs)]
    further = [f"**{node.args.kwarg.arg}"] if node.args.kwarg else []
    return f"{node.name}({', '.join([*given, *further])})"


def _signature(node: ast.FunctionDef) -> str:
    """The function's head, with a line per argument where one line is too long."""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    arguments = [re.sub(r"(: .*)=", r"\1 = ", argument) for argument in _split(ast.unparse(node.args))]
    text = f"def {node.name}({', '.join(arguments)}){returns}"
    if len(text) <= 100:
        return text
    return "\n".join([f"def {node.name}(", *(f"    {argument}," for argument in arguments), f"){returns}"])


def _split(arguments: str) -> list[str]:
    """Arguments at their commas, not at those within brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += (character in "([{") - (character in ")]}")
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _text(node: ast.AST) -> str:
    """The docstring as Markdown: what is aligned by blanks stays so in a block of code."""
    paragraphs = ast.get_docstring(node).split("\n\n")
    return "\n\n".join(
        textwrap.indent(paragraph, "    ")
        if re.search(r"\S {2}", paragraph) and not paragraph.startswith("    ")
        else paragraph
        for paragraph in paragraphs
    )


def _first_paragraph(node: ast.FunctionDef) -> str:
    return " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())


def _code(text: str) -> str:
    return f"```python\n{text}\n```"
