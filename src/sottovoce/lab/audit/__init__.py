"""`sottovoce audit`: attacks on the real release functions, and what they prove."""

from sottovoce.lab.audit.runner import run_audit

__all__ = ["run_audit"]
