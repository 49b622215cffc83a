"""All cases of this examiner."""

import rnl_faults_a  # noqa: F401
import rnl_faults_b  # noqa: F401
import rnl_healthy_a  # noqa: F401
import rnl_healthy_b  # noqa: F401
