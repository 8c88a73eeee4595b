"""`sottovoce audit`: attacks on the real release functions, and what they prove."""

from sottovoce.audit.runner import audit

__all__ = ["audit"]
