"""Training steps of one's own."""

import own_steps_adapt  # noqa: F401
import own_steps_gen  # noqa: F401
import own_steps_pairs  # noqa: F401
import own_steps_rl  # noqa: F401
