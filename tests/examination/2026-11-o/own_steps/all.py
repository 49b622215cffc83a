"""All cases of this examiner."""

import own_contrast  # noqa: F401
import own_generative  # noqa: F401
import own_more  # noqa: F401
import own_rl  # noqa: F401
import own_structure  # noqa: F401
import own_transfer  # noqa: F401
