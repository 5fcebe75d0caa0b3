"""dsmla-bench: speed and accuracy of the KV-cache formats of DeepSeek sparse MLA attention.

Rooms, ground floor first (an import never runs upward): ``kernels`` (what is measured), ``rows`` and ``results`` (how a
run lies on disk), ``bench`` and ``evals`` (measuring), ``reports`` (reading), ``cli`` (asking).
"""

__version__ = "0.1.0"
