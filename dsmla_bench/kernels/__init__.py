"""What is measured: cache formats, operations on them, and the providers that implement the operations."""
