"""All cases of this examiner."""

import rnm_faults_a  # noqa: F401
import rnm_faults_b  # noqa: F401
import rnm_healthy_a  # noqa: F401
import rnm_healthy_b  # noqa: F401
