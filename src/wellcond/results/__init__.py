"""What every measurement returns: rows of named numbers, and results that can be shown and saved."""

from wellcond.results.result import ByLayer, Cost, Progress, Result, Row
from wellcond.results.text import number, text_table

__all__ = ["ByLayer", "Cost", "Progress", "Result", "Row", "number", "text_table"]
