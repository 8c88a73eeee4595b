"""`sottovoce audit`: attacks on the real release functions, and what they prove."""

from sottovoce.lab.audit.runner import audit

__all__ = ["audit"]
