"""All cases of this folder."""

import rng_faults_a  # noqa: F401
import rng_faults_b  # noqa: F401
import rng_healthy_a  # noqa: F401
import rng_healthy_b  # noqa: F401
