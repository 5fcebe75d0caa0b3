"""What a third party writes to add a provider: one file. It writes by the reference and cannot gather."""


class ToyProvider:
    name = "toy_kernels"
    summary = "someone else's kernels"

    def __init__(self, libraries):
        self.library = libraries.get("toy_kernels")

    def why_not(self, operation, fmt, arch, shape=None):
        return None if operation.name == "write" else f"toy_kernels has no {operation.name}"

    def bind(self, operation, fmt, inputs, arch):
        return operation.reference(fmt, inputs)

    def conversion(self, operation, fmt, arch):
        return None

    def plan(self, operation, fmt, inputs, arch):
        return None

    def binary_sha256(self, operation, fmt, inputs, arch):
        return None

    def version(self):
        return "0.1"


PROVIDERS = (ToyProvider,)
