"""The version, which the package, its reports and its build all read from here."""

__version__ = "0.2.0"
