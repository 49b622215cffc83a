"""Back-matching losses, local Hessians, and the law of their spectra (zhang2018)."""

from wellcond.local.marchenko_pastur import marchenko_pastur

__all__ = ["marchenko_pastur"]
