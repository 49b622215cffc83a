import stp_rl  # noqa: F401
import stp_contrast  # noqa: F401
import stp_gen  # noqa: F401
import stp_nets  # noqa: F401
