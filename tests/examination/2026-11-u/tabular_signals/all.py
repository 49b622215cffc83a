import uts_a, uts_b, uts_c, uts_d  # noqa: E401,F401
