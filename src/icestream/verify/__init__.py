"""Verify: proof from the tables themselves that each record is in them once. Writes nothing."""

from icestream.verify.report import Finding, TableReport, VerifyResult
from icestream.verify.tables import verify

__all__ = ["Finding", "TableReport", "VerifyResult", "verify"]
