import osr_rl  # noqa: F401
import osr_gen  # noqa: F401
import osr_rep  # noqa: F401
import osr_misc  # noqa: F401
import osr_fine_rl  # noqa: F401
import osr_fine_gen  # noqa: F401
import osr_fine_misc  # noqa: F401
