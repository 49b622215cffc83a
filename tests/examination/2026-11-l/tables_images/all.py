import ti_f1, ti_f2, ti_f3, ti_f4, ti_s1, ti_s2  # noqa: F401
