"""Back-matching losses, local Hessians, and the law of their spectra (zhang2018)."""
